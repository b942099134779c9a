"""Verifies and scores predictions for SCROLLS (scrolls/score.py).

python eval_scrolls.py --split validation --dataset_name quality \\
    --predictions scrolls/quality/adape.json --metrics_output_dir scrolls/metrics
python eval_scrolls.py --all --predictions scrolls --metrics_output_dir scrolls/metrics
"""

from scrolls.score import main

if __name__ == "__main__":
    main()
