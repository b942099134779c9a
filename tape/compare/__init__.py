"""Finished runs side by side: `python -m tape.compare RUN... --out FOLDER`.

runs.py reads runs and their evaluations as rows in long form, and writes them. rows.py groups runs
by their settings and names the groups. view.py describes how one kind of evaluation is compared;
each kind defines its own. table.py and figures.py show the groups.
"""
