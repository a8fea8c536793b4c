"""The arena's shop: real Oscar pages on a database of one's own, which nobody else sees or changes."""

import asyncio
import html
import io
import itertools
import re
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from arena_server import Visitor
from PIL import Image

from webrl.errors import UsageError
from webrl_arena.world.client import Arena, Session
from webrl_arena.world.content import Product, catalogue
from webrl_arena.world.forum import forum
from webrl_arena.world.running import COOKIE, SESSIONS, STATE
from webrl_arena.world.tracker import tracker

pytestmark = pytest.mark.arena

PRODUCTS, CUSTOMERS = catalogue().products, catalogue().customers
TOPIC = forum().topics[0]
IN_STOCK = [product for product in PRODUCTS if product.stock > 5]


def test_pages_of_products_and_categories_show_what_the_catalogue_says(arena: Arena) -> None:
    product = next(p for p in IN_STOCK if len(p.reviews) > 1)
    with Visitor(arena) as visitor:
        page = html.unescape(visitor.see(_path(product)))
        (address,) = set(re.findall(r'href="(/catalogue/category/music/strings[^"]*)"', visitor.see("/catalogue/")))
        shown = _titles(visitor.see(address))
    texts = (product.title, f"${product.price}", product.upc, product.description, product.reviews[0].body)
    assert all(text in page for text in (*texts, *itertools.chain(*product.attributes)))
    assert shown
    assert shown <= {p.title for p in PRODUCTS if p.category == ("Music", "Strings")}


def test_search_finds_every_word_and_sorts_and_filters_by_price(arena: Arena) -> None:
    kettles = [p for p in PRODUCTS if p.kind == "Pour-Over Kettle"]
    with Visitor(arena) as visitor:
        assert _titles(visitor.see("/search/?q=kettle+pour-over")) == {kettle.title for kettle in kettles}
        cheapest = min(PRODUCTS, key=lambda p: p.price)
        assert cheapest.title in html.unescape(visitor.see("/catalogue/?sort_by=price-asc"))
        dear = sum(p.price >= 100 for p in PRODUCTS)
        assert re.search(rf"100 and more\s*(<[^>]*>\s*)*\({dear}\)", visitor.see("/catalogue/"))
        few = _titles(visitor.see("/search/?q=kettle&selected_facets=price:%5B50+TO+100%5D"))
        assert few == {kettle.title for kettle in kettles if 50 <= kettle.price < 100}
        assert _titles(visitor.see("/search/?q=kettle+-pour")) == set()
        assert _titles(visitor.see('/search/?q="over kettle"+%27')) == set()  # nothing has a lone quote
        assert _titles(visitor.see("/search/?q=" + kettles[0].sku)) == {kettles[0].title}


def test_a_log_in_is_that_customer_s_and_the_staff_s_opens_the_dashboard(arena: Arena) -> None:
    order = catalogue().orders[0]
    with Visitor(arena, f"customer:{order.email}") as visitor:
        page = html.unescape(visitor.see("/accounts/orders/"))
        assert order.number in page
        assert order.email in visitor.see("/accounts/profile/")
        assert visitor.http.get("/dashboard/").status_code == 403
    session = arena.open("staff")
    with Visitor(arena, session=session) as staff:
        assert session.start_url.endswith("/dashboard/")
        order = catalogue().orders[-1]
        mine = [each for each in catalogue().orders if each.email == order.email]
        account = next(customer for customer in CUSTOMERS if customer.email == order.email)
        counted = re.search(r"Number of orders</th>\s*<td>(\d+)<", staff.see(f"/dashboard/users/{account.pk}/"))
        assert counted is not None
        assert int(counted[1]) == len(mine)
        page = staff.see(f"/dashboard/orders/{order.number}/")
        assert order.customer in page
        assert f"{order.total:,}" in page


def test_without_a_session_of_one_s_own_there_is_no_shop(arena: Arena) -> None:
    session = arena.open()
    forged = session.cookies[0]["value"].split(":")[0] + ":forged"
    for cookies in ({}, {COOKIE: "x"}, {COOKIE: forged}, {COOKIE: "../../templates:x"}):
        refused = httpx.get(f"{arena.state.url}/catalogue/", cookies=cookies, trust_env=False, timeout=120)
        assert refused.status_code == 403
        assert "webrl arena open" in refused.text
    # A cookie that cannot be read does not hide the session's.
    cookies = {"Cookie": f"a b[]; {COOKIE}={session.cookies[0]['value']}"}
    assert httpx.get(f"{arena.state.url}/basket/", headers=cookies, trust_env=False, timeout=120).status_code == 200
    arena.drop(session)
    assert not session.database.parent.exists()
    with Visitor(arena, session=session) as late:
        assert late.http.get("/").status_code == 410


def test_only_the_key_opens_and_drops_sessions(arena: Arena) -> None:
    state = arena.folder / STATE
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    session = arena.open()
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer é".encode()}):
        for method, path in (("POST", "/arena/sessions"), ("DELETE", "/arena/sessions/")):
            answer = httpx.request(method, arena.state.url + path, headers=headers, trust_env=False, timeout=120)
            assert answer.status_code == 401
    assert session.database.is_file()
    assert httpx.get(f"{arena.state.url}/arena/enter/forged", trust_env=False, timeout=120).status_code == 403


def test_an_unknown_user_is_named(arena: Arena) -> None:
    with pytest.raises(UsageError, match=r"no user 'customer:nobody@example\.com'"):
        arena.open("customer:nobody@example.com")
    with pytest.raises(UsageError, match="user 'root' of the arena"):
        arena.open("root")
    assert not [path for path in (arena.folder / SESSIONS).iterdir() if path.name.startswith(".")]


def test_a_session_lasts_as_long_as_its_block(arena: Arena) -> None:
    async def play() -> Session:
        async with arena.new("staff") as session:
            assert _rows(session, "SELECT count(*) FROM catalogue_product") == [(len(PRODUCTS),)]
            return session

    assert not asyncio.run(play()).database.exists()


def test_a_session_that_nobody_waits_for_any_more_is_dropped(arena: Arena) -> None:
    before = set((arena.folder / SESSIONS).iterdir())

    async def give_up() -> None:
        waiting = asyncio.create_task(arena.new().__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(give_up())  # returns when the thread that was opening it has ended
    assert set((arena.folder / SESSIONS).iterdir()) == before


def test_an_edit_is_seen_and_found_in_its_own_session_alone(arena: Arena) -> None:
    product = PRODUCTS[10]
    with Visitor(arena, "staff") as staff, Visitor(arena) as other:
        staff.send(_edit(product), "Save", title="Marzipan Lighthouse", action="save")
        ((category,),) = _rows(staff.session, "SELECT id FROM catalogue_category WHERE name = 'Strings'")
        staff.send(f"/dashboard/catalogue/categories/{category}/update/", "Save", name="Bowed")
        assert _titles(staff.see("/search/?q=marzipan")) == {"Marzipan Lighthouse"}
        assert "Marzipan Lighthouse" in staff.see(f"/catalogue/{product.slug}_{product.pk}/")
        assert "Bowed" in staff.see("/catalogue/")
        assert _titles(other.see("/search/?q=marzipan")) == set()
        assert html.escape(product.title) in other.see(_path(product)).replace("&#x27;", "'")
        assert "Bowed" not in other.see("/catalogue/")
        assert "Strings" in other.see("/catalogue/")


def test_a_picture_is_shown_in_the_session_that_has_it(arena: Arena) -> None:
    drawn = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(drawn, "PNG")
    with Visitor(arena, "staff") as staff, Visitor(arena) as other:
        upload = {"images-0-original": ("p.png", drawn.getvalue(), "image/png")}
        staff.send(_edit(PRODUCTS[0]), "Save", upload, action="save")
        (name,) = [row[0] for row in _rows(staff.session, "SELECT original FROM catalogue_productimage")]
        assert f"/media/{name}" in staff.see(_path(PRODUCTS[0]))
        assert staff.http.get(f"/media/{name}").content == drawn.getvalue()
        assert other.http.get(f"/media/{name}").status_code == 404
        assert staff.http.get("/media/../shop.sqlite3").status_code == 404
        assert staff.http.get("/media/%2e%2e/shop.sqlite3").status_code in (400, 404)


@pytest.mark.slow
def test_writers_at_once_see_only_what_they_wrote(arena: Arena) -> None:
    num = 8  # as many as the two workers have threads
    visitors = [Visitor(arena, "staff" if i % 4 == 3 else f"customer:{CUSTOMERS[i].email}") for i in range(num)]

    reviews = f"{_path(IN_STOCK[0])}reviews/"

    def work(i: int) -> None:
        ticket = {"field_summary": f"Ticket of session {i}", "submit": "Create ticket"}
        visitors[i].send("/tracker/newticket", "Create ticket", follow=False, **ticket)
        if i % 4 == 3:
            visitors[i].send(_edit(IN_STOCK[0]), "Save", title=f"Title of session {i}", action="save", follow=False)
            return
        visitors[i].send(_path(IN_STOCK[i]), "Add to basket", follow=False)
        review = {"title": f"Review of session {i}", "score": 4, "body": "Written while others wrote."}
        visitors[i].send(f"{reviews}add/", "Save review", follow=False, **review)
        visitors[i].send(f"{TOPIC.path}post/create/", "Submit", follow=False, content=f"Reply of session {i}")
        letter = {"recipients": "staff@example.com", "subject": f"Letter of session {i}", "body": ""}
        visitors[i].send("/mail/write/", "Send", follow=False, **letter)

    def look(i: int) -> tuple[object, ...]:
        paths = (reviews, TOPIC.path, "/tracker/query?summary=~of+session", "/mail/sent/")
        pages = "".join(visitors[i].see(path) for path in paths)
        tickets = _rows(visitors[i].session, "SELECT count(*), max(id) FROM ticket", site="tracker")
        seen = set(re.findall(r"(?:Review|Title|Reply|Ticket|Letter) of session (\d+)", pages))
        queries = (
            "SELECT product_id, quantity FROM basket_line",
            "SELECT title FROM reviews_productreview WHERE title LIKE '%of session%'",
            "SELECT title FROM catalogue_product WHERE title LIKE '%of session%'",
            "SELECT content FROM forum_conversation_post WHERE content LIKE '%of session%'",
            "SELECT subject FROM postman_message WHERE subject LIKE '%of session%'",
        )
        return seen, tickets, *(_rows(visitors[i].session, query) for query in queries)

    with ThreadPoolExecutor(num) as pool:
        list(pool.map(work, range(num)))
        found = list(pool.map(look, range(num)))
    num_tickets = len(tracker().tickets) + 1
    for i, (seen, tickets, lines, reviewed, titles, replies, letters) in enumerate(found):
        assert seen == {str(i)}
        assert tickets == [(num_tickets, num_tickets)]
        found_rows = lines, reviewed, titles, replies, letters
        wrote = [[(f"{what} of session {i}",)] for what in ("Review", "Title", "Reply", "Letter")]
        if i % 4 == 3:
            assert found_rows == ([], [], wrote[1], [], [])
        else:
            assert found_rows == ([(IN_STOCK[i].pk, 1)], wrote[0], [], wrote[2], wrote[3])
    for visitor in visitors:
        arena.drop(visitor.session)
        visitor.http.close()


def _path(product: Product) -> str:
    return f"/catalogue/{product.slug}_{product.pk}/"


def _titles(page: str) -> set[str]:
    pods = page.split('<article class="product_pod">')[1:]
    return {html.unescape(pod.split('alt="')[1].split('"')[0]) for pod in pods}


def _rows(session: Session, query: str, *values: object, site: str = "shop") -> list[tuple[object, ...]]:
    database = sqlite3.connect(f"{session.database_of(site).as_uri()}?mode=ro", uri=True, timeout=60)
    try:
        return database.execute(query, values).fetchall()
    finally:
        database.close()


def _edit(product: Product) -> str:
    return f"/dashboard/catalogue/products/{product.pk}/"
