# ruff: noqa: E501 - markup and scripts read better on one line
"""The map (OpenStreetMap's addresses and markup) and the encyclopedia (Kiwix)."""

from __future__ import annotations

from .server import Request, Response, Site, esc, links, route

PLACES = {
    "chatham university": "Chatham University, Woodland Road, Shadyside, Pittsburgh, Allegheny County, 15232, United States",
    "carnegie mellon university": "Carnegie Mellon University, Schenley Drive Extension, North Oakland, Pittsburgh, 15213, United States",
    "carnegie hall": "Carnegie Hall, 881, West 57th Street, Manhattan, New York County, New York, 10019, United States",
    "td garden": "TD Garden, 100, Legends Way, West End, Boston, Suffolk County, Massachusetts, 02114, United States",
    "carnegie music hall": "Carnegie Music Hall, Forbes Avenue, North Oakland, Pittsburgh, 15213, United States",
    "pittsburgh": "Pittsburgh, Allegheny County, Pennsylvania, United States",
    "philadelphia": "Philadelphia, Philadelphia County, Pennsylvania, United States",
    "allentown, pa": "Allentown, Lehigh County, Pennsylvania, United States",
    "hoboken, nj": "Hoboken, Hudson County, New Jersey, United States",
}
ENGINES = ("Bicycle (OSRM)", "Car (OSRM)", "Foot (OSRM)")
HOURS = {("pittsburgh", "philadelphia"): "8:33"}


def place(text: str) -> str:
    return PLACES.get(text.strip().lower(), text)


class Map(Site):
    name = "map"
    title = "OpenStreetMap"

    def header(self, request: Request) -> str:
        return (
            '<header><h1><a href="/">OpenStreetMap</a></h1></header><form action="/search"><input name="query" aria-label="Search">'
            f"<button>Go</button></form>{links({'Find directions': '/directions'})}"
        )

    @route("GET", r"/")
    def home(self, request: Request) -> str:
        return '<div id="content"><div id="sidebar_content">Welcome to OpenStreetMap!</div></div>'

    @route("GET", r"/api/0.6/capabilities")
    def capabilities(self, request: Request) -> Response:
        return Response(
            '<osm generator="OpenStreetMap server"><api><version minimum="0.6" maximum="0.6"/></api></osm>',
            type="text/xml",
        )

    @route("GET", r"/search")
    def search(self, request: Request) -> str:
        query = request.query.get("query", "")
        found = {text: f"/relation/{i}" for i, (key, text) in enumerate(PLACES.items()) if query.lower() in key}
        return f'<div id="sidebar_content"><h2>Search Results</h2>{links(found)}</div>'

    @route("GET", r"/relation/(\d+)")
    def relation(self, request: Request, number: str) -> str:
        name = list(PLACES.values())[int(number)]
        return f'<div id="sidebar_content"><h2>Relation: {esc(name.split(",")[0])}</h2><p>{esc(name)}</p></div>'

    @route("GET", r"/directions")
    def directions(self, request: Request) -> str:
        """As in OpenStreetMap, a script fills in the places that were found: they are no attributes of the page."""
        start, end = request.query.get("from", ""), request.query.get("to", "")
        engine = int(request.query.get("engine", "0"))
        options = "".join(
            f'<option value="{i}"{" selected" if i == engine else ""}>{e}</option>' for i, e in enumerate(ENGINES)
        )
        time = HOURS.get((start.lower(), end.lower()), "6:12") if start and end else ""
        return (
            '<div id="content"><form action="/directions"><select class="routing_engines" name="engine" aria-label="Directions type">'
            f'{options}</select><input name="from" id="from" aria-label="From"><input name="to" id="to" aria-label="To">'
            f'<button>Directions</button></form><div id="sidebar_content">{f"<h2>Directions</h2>Distance: 492km. Time: {time}." if time else ""}</div></div>'
            f'<script>const f=document.getElementById("from"),t=document.getElementById("to");f.value={place(start)!r};t.value={place(end)!r};'
            'for (const [e,n] of [[f,"route_from"],[t,"route_to"]]) e.form.addEventListener("submit",()=>e.setAttribute("name",n.slice(6)));'
            'f.setAttribute("name","route_from");t.setAttribute("name","route_to");</script>'
        )


ARTICLES = {
    "Boston_Celtics": "The Boston Celtics play in the NBA. Their home games are at TD Garden, in Boston.",
    "Landing": "Wikipedia, the free encyclopedia",
}


class Wikipedia(Site):
    name = "wikipedia"
    title = "Wikipedia"

    def header(self, request: Request) -> str:
        return "<p>kiwix-serve 3.3</p>" + links({name.replace("_", " "): f"/A/{name}" for name in ARTICLES})

    @route("GET", r"/")
    def home(self, request: Request) -> str:
        return f"<h1>{ARTICLES['Landing']}</h1>"

    @route("GET", r"/A/(\w+)")
    def article(self, request: Request, name: str) -> str:
        return f"<h1>{esc(name.replace('_', ' '))}</h1><p>{esc(ARTICLES.get(name, 'No article'))}</p>"
