"""What pyproject.toml cannot say: `loadgen` is installed as `reaper_loadgen` and
`deploy`, which is data, as `reaper_deploy`: names that no other package takes. And the
long description.

server_example, scripts and benchmarks are not installed: they run from the checkout.
"""

import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

ours = ["reaper", "reaper.*", "loadgen", "loadgen.*", "deploy", "deploy.*"]
found = find_namespace_packages(
    include=ours, exclude=["*.__pycache__"]
)  # folders of data are packages, too
packages = [name if name.startswith("reaper") else f"reaper_{name}" for name in found]
placed = {"reaper_loadgen": "loadgen", "reaper_deploy": "deploy"}

# The repository has no public address, so a package index cannot follow a link into it,
# nor show a picture of it.
readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
readme = re.sub(r"^!\[.*\]\((?!https?:).*\)\n\n", "", readme, flags=re.MULTILINE)
readme = re.sub(r"\s`python -m scripts\.pictures` .*", "", readme)
readme = re.sub(r"^The picture above is .*?:", "`make demo` shows", readme, flags=re.MULTILINE)
readme = re.sub(r"\[([^\]]+)\]\((?!https?:)([^)]+)\)", r"\1 (`\2`)", readme)
readme = readme.replace("\n## ", "\nFiles named here are in the source distribution.\n\n## ", 1)

setup(
    packages=packages,
    package_dir=placed,
    package_data={"reaper_deploy": ["*/*", "*/*/*/*"]},
    long_description=readme,
    long_description_content_type="text/markdown",
)
