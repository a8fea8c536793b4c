"""Which files an agent may upload: those of one folder, and by default none."""

import os

import pytest
from rollouts_builders import on_page

from webrl.rollouts.execute import ActionFailed, find_uploads

READER = """<title>reader</title><input type=file aria-label=paper onchange="
  const reader = new FileReader();
  reader.onload = () => { document.title = reader.result; };
  reader.readAsText(this.files[0])">"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "secret.txt").write_text("planted")
    uploads = tmp_path / "uploads"
    (uploads / "deep").mkdir(parents=True)
    (uploads / "cv.txt").write_text("hello")
    (uploads / "deep" / "letter.txt").write_text("dear")
    (uploads / "link.txt").symlink_to(tmp_path / "secret.txt")
    (uploads / "up").symlink_to(tmp_path)
    os.mkfifo(uploads / "pipe")
    return uploads


def test_files_of_the_folder_are_found_by_relative_and_absolute_names(folder):
    assert find_uploads("cv.txt", folder) == [folder / "cv.txt"]
    names = ["deep/letter.txt", str(folder / "cv.txt"), "deep/../cv.txt"]
    assert find_uploads(names, folder) == [folder / "deep" / "letter.txt", folder / "cv.txt", folder / "cv.txt"]


@pytest.mark.parametrize(
    "name",
    [
        *("../secret.txt", "link.txt", "up/secret.txt", "deep/../../secret.txt", "absolute", "/etc/passwd"),
        *("deep", ".", "pipe", "gone"),
    ],
)
def test_no_name_leads_out_of_the_folder(folder, name):
    name = name if name != "absolute" else str(folder.parent / "secret.txt")
    with pytest.raises(ActionFailed) as refused:
        find_uploads(["cv.txt", name], folder)
    assert str(refused.value) == f"Blocked: {name!r} is not a file of the upload folder."  # whether it exists or not


@pytest.mark.browser
def test_a_page_reads_uploads_from_the_folder_only(folder):
    uploads = [f"upload_file('{{button 'paper'}}', {name!r})" for name in ("../secret.txt", "link.txt", "cv.txt")]
    texts, (*outside, inside, _), _ = on_page(READER, *uploads, "noop(500)", upload_dir=folder)
    assert all("is not a file of the upload folder" in result.error for result in outside)
    assert inside.error == ""
    assert "RootWebArea 'hello'" in texts[-1]


@pytest.mark.browser
def test_without_a_folder_nothing_is_uploaded(folder):
    name = str(folder.parent / "secret.txt")
    uploads = (f"upload_file('{{button 'paper'}}', {name!r})", f"mouse_upload_file(10, 10, {name!r})")
    for result in on_page(READER, *uploads)[1]:
        assert "rollout.upload_dir is not set" in result.error
        assert "planted" not in result.observation.text
