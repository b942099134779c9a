"""MkDocs hook: shows links to files that are not part of the site as code."""

import re
from pathlib import Path


def on_page_markdown(markdown: str, page, config, **_) -> str:
    """Replaces `[text](target)` by the text and the target's path in the repository."""
    root, folder = Path(config.config_file_path).parent, Path(page.file.abs_src_path).parent

    def code(match: re.Match) -> str:
        text, target = match.groups()
        path = (folder / target.partition("#")[0]).resolve()
        if "://" in target or not target.partition("#")[0]:
            return match[0]
        if path.is_file() and path.is_relative_to(config.docs_dir):
            return match[0]
        shown = str(path.relative_to(root))
        return f"`{shown}`" if text.strip("`") in (shown, path.name) else f"{text}, `{shown}`"

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)]+)\)", code, markdown)
