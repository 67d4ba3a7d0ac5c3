"""What pyproject.toml cannot say: `loadgen` is installed as `reaper_loadgen` and `deploy`, which is
data, as `reaper_deploy`: names that no other package takes.

server_example, scripts and benchmarks are not installed: they run from the checkout.
"""

from setuptools import find_namespace_packages, setup

ours = ["reaper", "reaper.*", "loadgen", "loadgen.*", "deploy", "deploy.*"]
found = find_namespace_packages(
    include=ours, exclude=["*.__pycache__"]
)  # folders of data are packages, too
packages = [name if name.startswith("reaper") else f"reaper_{name}" for name in found]
placed = {"reaper_loadgen": "loadgen", "reaper_deploy": "deploy"}

setup(packages=packages, package_dir=placed, package_data={"reaper_deploy": ["*/*", "*/*/*/*"]})
