"""What pyproject.toml cannot say: `loadgen` is installed as `reaper_loadgen`, a name that no other
package takes.

server_example, scripts and benchmarks are not installed: they run from the checkout.
"""

from setuptools import find_namespace_packages, setup

ours = ["reaper", "reaper.*", "loadgen", "loadgen.*"]
found = find_namespace_packages(
    include=ours, exclude=["*.__pycache__"]
)  # folders of data are packages, too
packages = [f"reaper_{name}" if name.startswith("loadgen") else name for name in found]

setup(packages=packages, package_dir={"reaper_loadgen": "loadgen"})
