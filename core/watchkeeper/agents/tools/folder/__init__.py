"""`list_folder`: what a folder holds, in pages of bounded size, and the joining of figures drawn from those
pages.

Promises: the same folder gives the same pages, in one order, wherever a page ends; nothing outside the
workspace is listed, no link is followed, no special file is opened; each line, byte and mark is counted once.
"""

from watchkeeper.agents.tools.folder.merge import expand_includes, merge_json
from watchkeeper.agents.tools.folder.page import scan_page
from watchkeeper.agents.tools.folder.spec import LIST_FOLDER, arguments_of

__all__ = ["LIST_FOLDER", "arguments_of", "expand_includes", "merge_json", "scan_page"]
