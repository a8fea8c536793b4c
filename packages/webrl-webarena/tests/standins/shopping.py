# ruff: noqa: RUF012 - names and addresses read better on one line
"""One Stop Market: the customer's shop (Magento's addresses and markup)."""

import json

from .server import Request, Response, Site, as_json, redirect, route

CANDLES = {
    "tall-pink-taper-candles-4-piece-orange-colored-tapered-candles-gradient-candles-10-6-inches-tall-tie-dye-candle-"
    "set-large-dripless-long-burning-candlesticks-two-color-taper-candles-candlesticks": (
        "Tall Pink Taper Candles, 4 Piece",
        19.99,
    ),
    "spaas-white-taper-candles-4-pack-10-inch-tall-candles-scent-free-premium-wax-candle-sticks-8-hour-long-burning-"
    "white-candlesticks-for-home-decoration-wedding-holiday-and-parties": (
        "SPAAS White Taper Candles - 4 Pack | 10 Inch Tall Candles, Scent-Free Premium Wax Candle Sticks | 8 Hour Long "
        "Burning White Candlesticks for Home Decoration, Wedding, Holiday and Parties",
        11.99,
    ),
    "white-starfish-wall-candle-sconces-set-of-2-beach-decor-ocean-themed-wall-mount-candleholders-nautical-style-beach-"
    "bathroom-decor-coastal-farmhouse-seashell-candle-holders": ("White Starfish Wall Candle Sconces Set of 2", 16.95),
}
STARS_1 = (
    "Unable to set neutral steering",
    "Doesn’t work with PC",
    "Crazy problems in automatic mode",
    "pedals stopped working",
    "Only works with certain games",
)
# slug: (name, price, sku, reviews as (stars, title))
PRODUCTS = {
    **{slug: (name, price, f"B00C{i}", ()) for i, (slug, (name, price)) in enumerate(CANDLES.items())},
    "elmwood-inn-fine-teas-orange-vanilla-caffeine-free-fruit-infusion-16-ounce-pouch": (
        "Elmwood Inn Fine Teas, Orange Vanilla Caffeine-free Fruit Infusion, 16-Ounce Pouch",
        19.36,
        "B001",
        (),
    ),
    "nicotidine-mouth-guard": ("Mouth Guard for teeth grinding, helps against jaw bruxism", 24.99, "B002", ()),
    "impossible-burger": (
        "Plant-based burger patties, value pack of 40",
        149.0,
        "B01CTR3DLE",
        ((5, "Great"), (5, "Love it")),
    ),
    "soy-curls": ("Soy curls, bulk", 120.0, "B003", ((3, "Fine"),)),
    "racing-wheel-overdrive": (
        "Racing Wheel Overdrive for Xbox X",
        99.0,
        "B004",
        (*((1, title) for title in STARS_1), (5, "Very good")),
    ),
    "switch-case": ("Switch accessories bundle", 29.0, "B005", ()),
    "speaker": ("Bluetooth speaker", 79.0, "B003FVW3VA", ()),
}


class Shopping(Site):
    name = "shopping"
    title = "One Stop Market"
    users = {"emma.lopez@gmail.com": "Password.123"}
    login_path = "/customer/account/login/"
    products = PRODUCTS

    def reset(self) -> None:
        super().reset()
        self.wishlist: list[str] = []
        self.cart: list[str] = []
        self.subscribed = False
        self.address = {"street": "101 S San Mateo Dr", "city": "San Mateo", "region": "California", "zip": "94010"}
        self.orders = {1: ("3/2/22", "complete", ("switch-case",)), 148: ("1/29/23", "complete", ("speaker",))}

    def found(self, words: str) -> dict[str, str]:
        """The products of whose names one of the words is a part, with their addresses."""
        return {
            name: f"/{slug}.html"
            for slug, (name, *_) in PRODUCTS.items()
            if any(word in name.lower() for word in words.lower().split())
        }

    @route("POST", r"/customer/account/login")
    def login(self, request: Request) -> Response:
        return self.log_in(request, request.form["email"], request.form["pass"], "/customer/account/", self.login_path)

    @route("GET", r"/([\w-]+)\.html")
    def product(self, request: Request, slug: str) -> Response | str:
        if slug not in PRODUCTS:
            return Response(self.page(request, "<h1>Whoops, our bad...</h1>"), 404)
        return self.shown("product", request, slug)

    @route("POST", r"/wishlist/add/([\w-]+)", login=True)
    def wish(self, request: Request, slug: str) -> Response:
        self.wishlist.append(slug)
        return redirect("/wishlist/")

    @route("POST", r"/cart/add/([\w-]+)")
    def to_cart(self, request: Request, slug: str) -> Response:
        self.cart.append(slug)
        return redirect("/checkout/cart/")

    @route("POST", r"/checkout", login=True)
    def order(self, request: Request) -> Response:
        number = max(self.orders) + 1
        self.orders[number] = ("6/12/23", "pending", tuple(self.cart))
        self.cart.clear()
        return redirect(f"/sales/order/view/order_id/{number}/")

    @route("POST", r"/newsletter/manage", login=True)
    def subscribe(self, request: Request) -> Response:
        self.subscribed = "is_subscribed" in request.form
        return redirect("/newsletter/manage/")

    @route("POST", r"/customer/address/save", login=True)
    def save_address(self, request: Request) -> Response:
        self.address = dict(request.form)
        return redirect("/customer/address/")

    @route("POST", r"/rest/default/V1/integration/admin/token")
    def rest_token(self, request: Request) -> Response:
        data = json.loads(request.data)
        if (data.get("username"), data.get("password")) != ("admin", "admin1234"):
            return Response('{"message": "denied"}', 401, content_type="application/json")
        return as_json("rest-token")

    @route("GET", r"/rest/V1/orders")
    def rest_orders(self, request: Request) -> Response:
        if request.headers.get("Authorization") != "Bearer rest-token":
            return Response("{}", 401, content_type="application/json")
        newest = max(self.orders)
        return as_json({"items": [{"increment_id": f"{newest:09d}"}]})
