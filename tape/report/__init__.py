"""Every result under a folder on one page: `python -m tape.report output/ --out report/`.

What lies in a folder is found by finding.py. An experiment (experiment.py) says which of it are
its results, reads them with the readers that its own commands use, and makes blocks of them
(blocks.py), which html.py writes and page.py joins. experiments.py lists the experiments.
"""
