"""A systemd of its own for a test: process 1 of new namespaces, with our units and nothing else, on no network but lo.

What a unit may write, and where it looks for programs, lies on file systems in memory, which end with the namespace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SYSTEMD = "/lib/systemd/systemd"

BOOT = """
set -e
mount -t cgroup2 none /sys/fs/cgroup
for each in /run /var/lib /etc/systemd/system /etc/reaper /opt /srv; do mkdir -p $each; mount -t tmpfs tmpfs $each; done
mkdir -p /opt/python /opt/reaper /srv/app
mount --bind {prefix} /opt/python
mount --bind {root} /opt/reaper
mount -t tmpfs tmpfs /opt/reaper/.venv
mkdir -p /opt/reaper/.venv/bin /opt/reaper/.venv/lib /etc/systemd/system/trial.target.wants
printf 'home = /opt/python/bin\\n' > /opt/reaper/.venv/pyvenv.cfg
ln -s /opt/python/bin/{python} /opt/reaper/.venv/bin/python
mount --bind {lib} /opt/reaper/.venv/lib
ln -s /opt/reaper/.venv /srv/app/.venv
cp -r {given}/etc-reaper/. /etc/reaper/
cp {given}/app.py /srv/app/
cp {given}/units/* /etc/systemd/system/
chmod -R a+rX /srv /etc/reaper
ip link set lo up
touch {given}/console
exec > {given}/console 2>&1
container=trial exec {systemd} --system --unit=trial.target --log-target=kmsg --show-status=no < /dev/null
"""

TARGET = "[Unit]\nDefaultDependencies=no\nWants={wants}\n"

TRIAL = """[Unit]
DefaultDependencies=no
After={after}
[Service]
Type=oneshot
ExecStart={python} {script}
StandardOutput=append:{output}
StandardError=append:{output}
ExecStopPost={systemctl} exit --force --force
[Install]
WantedBy=trial.target
"""


def booted(directory: Path, units: dict[str, str], script: str, files: dict[str, str]) -> str:
    """Boot with *units*, run *script* (Python) once they have been started, and return what it printed.

    Args:
        files: What lies in `/etc/reaper`, by name; `app.py` in `/srv/app`.
    """
    if not (Path(SYSTEMD).exists() and shutil.which("unshare") and shutil.which("ip") and os.geteuid() == 0):
        pytest.skip("needs root, systemd, unshare and ip (Debian: apt-get install systemd iproute2)")
    for name in ("units", "etc-reaper"):
        (directory / name).mkdir()
    directory.chmod(0o755)
    started = " ".join(units)
    output = directory / "output"
    every = dict(units)
    every["trial.service"] = TRIAL.format(
        after=started,
        python=sys.executable,
        script=directory / "script.py",
        output=output,
        systemctl=shutil.which("systemctl"),
    )
    every["trial.target"] = TARGET.format(wants=f"{started} trial.service")
    for name, text in every.items():
        # What a booted system has by now, and this one never gets.
        text = text.replace("[Unit]\n", "[Unit]\nDefaultDependencies=no\n", 1)
        if name in units:
            said = f"[Service]\nStandardOutput=append:{output}\nStandardError=append:{output}\n"
            said += "Environment=LD_LIBRARY_PATH=/opt/python/lib\n"  # of a Python whose home the unit may not see
            text = text.replace("[Service]\n", said, 1)
        (directory / "units" / name).write_text(text)
    for name, text in files.items():
        (directory / ("app.py" if name == "app.py" else f"etc-reaper/{name}")).write_text(text)
    (directory / "script.py").write_text(script)
    boot = BOOT.format(
        prefix=sys.base_prefix,
        python=f"python{sys.version_info.major}.{sys.version_info.minor}",
        lib=Path(sys.prefix) / "lib",
        root=ROOT,
        given=directory,
        systemd=SYSTEMD,
    )
    namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--cgroup", "--net", "--uts", "--ipc"]
    done = subprocess.run(
        ["unshare", *namespaces, "bash", "-c", boot], capture_output=True, text=True, timeout=60, check=False
    )
    if not output.exists():
        said = (directory / "console").read_text() if (directory / "console").exists() else ""
        pytest.skip(f"no systemd can be started here: {done.stderr[-300:]}{said[-300:]}")
    return output.read_text()
