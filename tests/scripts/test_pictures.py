"""The pictures in the README are what a command printed, and load nothing."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts import pictures
from scripts.pictures import draw, printed

PICTURES = Path(__file__).parent.parent.parent / "docs" / "img"


def test_a_picture_has_the_words_and_colours_that_were_printed(tmp_path: Path) -> None:
    place = tmp_path / "made.svg"
    draw("$ reaper top\n\x1b[31mred\x1b[0m   plain", place, "a title")
    text = "".join(ElementTree.parse(place).getroot().itertext())
    assert all(word in text for word in ("top", "red", "plain", "a\xa0title"))
    assert "@font-face" not in place.read_text()
    assert len(set(re.findall(r"fill: (#\w+)", place.read_text()))) > 1


@pytest.mark.parametrize("name", ["top.svg", "doctor.svg", "demo.svg"])
def test_a_picture_of_the_readme_loads_nothing_and_is_small(name: str) -> None:
    text = (PICTURES / name).read_text()
    assert not re.search(r"url\((?!#)|href=|@import|<script|<image", text)
    assert len(text) < 20_000


def test_a_command_is_shown_as_on_a_terminal() -> None:
    said = printed("--version")
    assert re.fullmatch(r"\$ reaper --version\nreaper [0-9.]+\n", said)


def test_a_folder_for_the_pictures_that_is_not_there_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "new" / "folder"
    monkeypatch.setattr("sys.argv", ["pictures", "--out", str(out)])
    monkeypatch.setattr(pictures, "top", lambda _: "$ reaper top")
    monkeypatch.setattr(pictures, "doctor", lambda _: "$ reaper doctor")
    assert pictures.main() == 0
    assert {path.name for path in out.iterdir()} == {"top.svg", "doctor.svg"}


def test_a_file_is_refused_as_the_folder_for_the_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("sys.argv", ["pictures", "--out", str(tmp_path / "file")])
    with pytest.raises(SystemExit) as ended:
        pictures.main()
    assert ended.value.code == 2
    assert "File exists; name a folder" in capsys.readouterr().err
