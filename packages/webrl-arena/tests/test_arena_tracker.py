"""The arena's tracker: real Trac pages on an environment of one's own, which nobody else sees or changes."""

import html
import re
from pathlib import Path

import psutil
import pytest
from arena_server import Visitor

from webrl_arena.world.client import Arena
from webrl_arena.world.content import catalogue
from webrl_arena.world.tracker import STAFF, Ticket, login_of, tracker
from webrl_site.checks import first_value

CONTENT = tracker()
TICKETS = CONTENT.tickets
OPEN = next(ticket for ticket in TICKETS if ticket.is_open and ticket.comments)
pytestmark = pytest.mark.arena


def test_the_pages_show_what_the_content_says(arena: Arena) -> None:
    shelf = CONTENT.shelves[0]
    with Visitor(arena) as visitor:
        page = html.unescape(visitor.see(f"/tracker/ticket/{OPEN.number}"))
        for text in (OPEN.summary, OPEN.description, OPEN.component, OPEN.comments[0].body):
            assert text in page
        for login in (OPEN.owner, OPEN.reporter, OPEN.comments[0].author):
            assert CONTENT.names[login] in page
        assert OPEN.summary in html.unescape(visitor.see("/tracker/query?order=id&max=1000"))
        counted = len(re.findall(r'<td class="id"', visitor.see("/tracker/query?component=search&max=1000")))
        assert counted == sum(ticket.component == "search" for ticket in TICKETS)
        page = visitor.see(f"/tracker/wiki/{shelf.name}")
        assert all(html.escape(text) in page for text in (shelf.buyer, shelf.aisle, shelf.supplier, shelf.day))
        assert all(milestone.name in visitor.see("/tracker/roadmap?show=completed") for milestone in CONTENT.milestones)
        assert visitor.http.get("/tracker/chrome/common/js/jquery.js").status_code == 200
        assert visitor.http.get("/tracker/wiki/Nowhere").status_code == 404
        assert visitor.http.get("/trackers").status_code == 404


def test_a_log_in_holds_on_all_sites_and_allows_what_its_user_may_do(arena: Arena) -> None:
    customer = catalogue().customers[3]
    with Visitor(arena, f"customer:{customer.email}") as visitor:
        page = visitor.see(_ticket(OPEN))
        assert customer.name in page
        assert "Submit changes" in page  # a comment
        assert "field_priority" not in page
        assert visitor.http.get("/tracker/wiki/WikiStart?action=edit").status_code == 403
        assert visitor.http.get("/tracker/admin").status_code == 404
        assert customer.email in visitor.see("/accounts/profile/")
        visitor.send("/tracker/wiki", "Logout", follow=False)
        assert customer.name not in visitor.see("/tracker/wiki")
        assert visitor.http.get("/tracker/login").headers["Location"].endswith("/tracker")
        assert customer.email in visitor.see("/accounts/profile/")
    with Visitor(arena) as nobody:
        assert nobody.http.get("/tracker/newticket").status_code == 403
    with Visitor(arena, "staff") as staff:
        admin = staff.see("/tracker/admin/general/perm")
        assert "TRAC_ADMIN" in admin
        assert staff.http.get("/tracker/admin/general/plugin").status_code == 404  # it installs code
        assert staff.http.get("/tracker/admin/general/logging").status_code == 404  # it names files
        assert 'href="/dashboard/"' in admin


def test_what_is_written_is_there_for_its_session_alone(arena: Arena) -> None:
    shelf = CONTENT.shelves[0]
    with Visitor(arena, "staff") as staff, Visitor(arena, "staff") as other:
        closing = {"action": "resolve", "action_resolve_resolve_resolution": "wontfix", "comment": "Too dear."}
        page = staff.send(_ticket(OPEN), "Submit changes", submit="Submit changes", **closing)
        assert "Too dear." in page
        query = f"SELECT resolution FROM ticket WHERE status = 'closed' AND id = {OPEN.number}"
        assert first_value(staff.session.database_of("tracker"), query, 60) == "wontfix"
        edit = f"/tracker/wiki/{shelf.name}?action=edit"
        assert "Mezzanine" in staff.send(edit, "Submit changes", save="Submit changes", text="Aisle: Mezzanine")
        component = {"name": "greenhouse", "owner": STAFF, "add": "Add"}
        assert "greenhouse" in staff.send("/tracker/admin/ticket/components", "Add", **component)
        assert "greenhouse" in staff.see("/tracker/newticket")
        staff.send("/tracker/admin/ticket/components", "Apply changes", default="greenhouse", apply="Apply changes")
        assert "greenhouse" in (staff.session.database.parent / "tracker" / "conf" / "trac.ini").read_text()
        file = {"attachment": ("note.txt", b"two pieces", "text/plain")}
        attach = f"/tracker/attachment/ticket/{OPEN.number}/?action=new"
        assert "note.txt" in staff.send(attach, "Add attachment", file, save="Add attachment")
        assert "two pieces" in staff.see(f"/tracker/attachment/ticket/{OPEN.number}/note.txt")
        assert staff.see("/tracker/search?q=Mezzanine").count("Shelf/") >= 1
        for path in (_ticket(OPEN), f"/tracker/wiki/{shelf.name}", "/tracker/newticket", "/tracker/search?q=Mezzanine"):
            page = other.see(path)
            assert not [text for text in ("Too dear", "Mezzanine</p>", "greenhouse", "note.txt") if text in page]
        assert other.http.get(f"/tracker/attachment/ticket/{OPEN.number}/note.txt").status_code == 404


def test_a_report_s_sql_reaches_no_other_file(arena: Arena, tmp_path: Path) -> None:
    with Visitor(arena, "staff") as staff:
        for name, query in (("vacuum", "VACUUM INTO '{}'"), ("attach", "ATTACH '{}' AS other")):
            path = tmp_path / f"{name}.sqlite3"
            asked = {"title": name, "query": query.format(path), "action": "new"}
            staff.send("/tracker/report?action=new", "Save report", save="Save report", follow=False, **asked)
            report = first_value(staff.session.database_of("tracker"), "SELECT max(id) FROM report", 60)
            for form in ("", "?format=tab"):
                staff.http.get(f"/tracker/report/{report}{form}")
            assert not path.exists()
        assert report == 6  # both were saved


def test_no_worker_keeps_anything_of_a_session_open(arena: Arena) -> None:
    for _ in range(20):  # Trac itself keeps ten connections, and every environment
        with Visitor(arena, "staff") as staff:
            for path in (_ticket(OPEN), "/tracker/query?status=new", "/tracker/wiki"):
                staff.see(path)
        kept = [file.path for worker in psutil.Process(arena.state.pid).children() for file in worker.open_files()]
        assert not [path for path in kept if staff.session.id in path]
        arena.drop(staff.session)


def test_customers_are_called_by_the_first_part_of_their_address(arena: Arena) -> None:
    ticket = next(ticket for ticket in TICKETS if ticket.order)
    customer = next(o.email for o in catalogue().orders if o.number == ticket.order)
    assert login_of(customer) == ticket.reporter
    with Visitor(arena, f"customer:{customer}") as visitor:
        mine = visitor.see(f"/tracker/query?reporter={ticket.reporter}&max=1000")
    assert ticket.summary in html.unescape(mine)


def _ticket(ticket: Ticket) -> str:
    return f"/tracker/ticket/{ticket.number}"
