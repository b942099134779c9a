"""SCROLLS (Shaham et al. 2022, arXiv 2201.03533): fine-tune on long texts, generate, score."""
