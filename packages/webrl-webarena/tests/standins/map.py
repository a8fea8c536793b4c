# ruff: noqa: E501, RUF012 - addresses read better on one line
"""The map (OpenStreetMap's addresses and markup) and the encyclopedia (Kiwix)."""

from .server import Site


class Map(Site):
    name = "map"
    title = "OpenStreetMap"
    engines = ("Bicycle (OSRM)", "Car (OSRM)", "Foot (OSRM)")
    places = {
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

    def place(self, text: str) -> str:
        return self.places.get(text.strip().lower(), text)

    def number_of(self, key: str) -> int:
        return list(self.places).index(key)

    @staticmethod
    def hours(start: str, end: str) -> str:
        return "8:33" if (start.lower(), end.lower()) == ("pittsburgh", "philadelphia") else "6:12"


class Wikipedia(Site):
    name = "wikipedia"
    title = "Wikipedia"
    articles = {
        "Boston_Celtics": "The Boston Celtics play in the NBA. Their home games are at TD Garden, in Boston.",
        "Landing": "Wikipedia, the free encyclopedia",
    }
