"""Every result under a folder on one page: `python -m tape.report output/ --out report/`.

experiment.py finds results in folders, results.py and training.py read them and make blocks of
them, html.py writes these. experiments.yaml lists the experiments.
"""
