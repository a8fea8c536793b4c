# ruff: noqa: E501, RUF012 - markup and scripts read better on one line
"""One Stop Market: the customer's shop (Magento's addresses and markup)."""

from __future__ import annotations

import json

from .server import Request, Response, Site, as_json, esc, field_, links, redirect, route, select

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
CATEGORIES = {"meat-substitutes": ("Meat Substitutes", ("impossible-burger", "soy-curls"))}


class Shopping(Site):
    name = "shopping"
    title = "One Stop Market"
    users = {"emma.lopez@gmail.com": "Password.123"}
    login_path = "/customer/account/login/"

    def reset(self) -> None:
        super().reset()
        self.wishlist: list[str] = []
        self.cart: list[str] = []
        self.subscribed = False
        self.address = {"street": "101 S San Mateo Dr", "city": "San Mateo", "region": "California", "zip": "94010"}
        self.orders = {1: ("3/2/22", "complete", ("switch-case",)), 148: ("1/29/23", "complete", ("speaker",))}

    def header(self, request: Request) -> str:
        account = (
            {"My Account": "/customer/account/", "My Wish List": "/wishlist/"}
            if request.user
            else {"Sign In": self.login_path}
        )
        return (
            f"<nav>{links(account | {'Contact Us': '/contact/', 'Meat Substitutes': '/grocery/meat-substitutes.html'})}</nav>"
            '<form action="/catalogsearch/result/"><input name="q" aria-label="Search" role="combobox">'
            '<button title="Search">Search</button></form>'
        )

    @route("GET", r"/")
    def home(self, request: Request) -> str:
        return "<h1>One Stop Market</h1><p>Product showcases</p>"

    @route("GET", r"/magento_version")
    def version(self, request: Request) -> Response:
        return Response("Magento/2.4 (Community)", type="text/plain")

    @route("GET", r"/customer/account/login")
    def login_form(self, request: Request) -> str:
        return (
            '<form method="post"><h1>Customer Login</h1>'
            + field_("Email", "email", kind="email")
            + field_("Password", "pass", kind="password")
            + "<button>Sign In</button></form>"
            '<form><label>Email Address for the newsletter <input name="nl"></label></form>'
        )

    @route("POST", r"/customer/account/login")
    def login(self, request: Request) -> Response:
        return self.log_in(request, request.form["email"], request.form["pass"], "/customer/account/", self.login_path)

    @route("GET", r"/customer/account", login=True)
    def account(self, request: Request) -> str:
        return "<h1>My Account</h1>" + links(
            {
                "My Orders": "/sales/order/history/",
                "Address Book": "/customer/address/",
                "Newsletter Subscriptions": "/newsletter/manage/",
            }
        )

    @route("GET", r"/catalogsearch/result")
    def search(self, request: Request) -> str:
        words = request.query.get("q", "").lower().split()
        found = {p[0]: f"/{slug}.html" for slug, p in PRODUCTS.items() if any(w in p[0].lower() for w in words)}
        return f"<h1>Search results for: '{esc(request.query.get('q', ''))}'</h1><ol>{links(found)}</ol>"

    @route("GET", r"/grocery/([\w-]+)\.html")
    def category(self, request: Request, slug: str) -> str:
        title, slugs = CATEGORIES[slug]
        rows = "".join(
            f"<li>{links({PRODUCTS[s][0]: f'/{s}.html'})} ${PRODUCTS[s][1]} rating "
            f"{20 * sum(r[0] for r in PRODUCTS[s][3]) / len(PRODUCTS[s][3]):.0f}%</li>"
            for s in slugs
        )
        return f"<h1>{title}</h1><ol>{rows}</ol>"

    @route("GET", r"/([\w-]+)\.html")
    def product(self, request: Request, slug: str) -> Response | str:
        if slug not in PRODUCTS:
            return Response(self.page(request, "<h1>Whoops, our bad...</h1>"), 404)
        name, price, sku, reviews = PRODUCTS[slug]
        texts = "".join(f"<li><b>{esc(t)}</b> Rating {20 * stars}%</li>" for stars, t in reviews)
        return (
            f'<h1 class="page-title">{esc(name)}</h1><span class="price">${price}</span> SKU {sku}'
            f'<form method="post" action="/cart/add/{slug}"><button>Add to Cart</button></form>'
            f'<form method="post" action="/wishlist/add/{slug}"><button>Add to Wish List</button></form>'
            f'<h2>Customer Reviews</h2><ol class="review-items">{texts}</ol>'
        )

    @route("POST", r"/wishlist/add/([\w-]+)", login=True)
    def wish(self, request: Request, slug: str) -> Response:
        self.wishlist.append(slug)
        return redirect("/wishlist/")

    @route("GET", r"/wishlist", login=True)
    def wishes(self, request: Request) -> str:
        items = "".join(f'<li class="product-item">{esc(PRODUCTS[slug][0])}</li>' for slug in self.wishlist)
        return f'<h1>My Wish List</h1><div class="products-grid wishlist"><ol>{items}</ol></div>'

    @route("POST", r"/cart/add/([\w-]+)")
    def to_cart(self, request: Request, slug: str) -> Response:
        self.cart.append(slug)
        return redirect("/checkout/cart/")

    @route("GET", r"/checkout/cart")
    def cart_page(self, request: Request) -> str:
        items = "".join(f"<tr><td>{esc(PRODUCTS[s][0])}</td><td>${PRODUCTS[s][1]}</td></tr>" for s in self.cart)
        return f"<h1>Shopping Cart</h1><table>{items}</table>" + links({"Proceed to Checkout": "/checkout/"})

    @route("GET", r"/checkout", login=True)
    def checkout(self, request: Request) -> str:
        return '<h1>Review & Payments</h1><form method="post"><button>Place Order</button></form>'

    @route("POST", r"/checkout", login=True)
    def order(self, request: Request) -> Response:
        number = max(self.orders) + 1
        self.orders[number] = ("6/12/23", "pending", tuple(self.cart))
        self.cart.clear()
        return redirect(f"/sales/order/view/order_id/{number}/")

    @route("GET", r"/sales/order/history", login=True)
    def history(self, request: Request) -> str:
        rows = "".join(
            f"<tr><td>{n:09d}</td><td>{date}</td><td>{status}</td><td>{links({'View Order': f'/sales/order/view/order_id/{n}/'})}</td></tr>"
            for n, (date, status, _) in sorted(self.orders.items(), reverse=True)
        )
        return f"<h1>My Orders</h1><table>{rows}</table>"

    @route("GET", r"/sales/order/view/order_id/(\d+)", login=True)
    def order_page(self, request: Request, number: str) -> str:
        date, status, slugs = self.orders[int(number)]
        rows = "".join(f"<tr><td>{esc(PRODUCTS[s][0])}</td><td>{PRODUCTS[s][2]}</td></tr>" for s in slugs)
        return (
            f"<h1>Order # {int(number):09d}</h1><span>{status}</span><p>Order Date: {date}</p>"
            f'<div class="order-details-items ordered"><table id="my-orders-table">{rows}</table></div>'
        )

    @route("GET", r"/newsletter/manage", login=True)
    def newsletter(self, request: Request) -> str:
        ticked = " checked" if self.subscribed else ""
        return (
            '<h1>Newsletter Subscription</h1><form method="post"><label><input type="checkbox" name="is_subscribed" value="1" '
            f'title="General Subscription"{ticked}> General Subscription</label><button>Save</button></form>'
        )

    @route("POST", r"/newsletter/manage", login=True)
    def subscribe(self, request: Request) -> Response:
        self.subscribed = "is_subscribed" in request.form
        return redirect("/newsletter/manage/")

    @route("GET", r"/customer/address", login=True)
    def addresses(self, request: Request) -> str:
        a = self.address
        text = f"Emma Lopez<br>{esc(a['street'])}<br>{esc(a['city'])}, {esc(a['region'])}, {esc(a['zip'])}<br>United States"
        boxes = "".join(
            f'<div class="box box-address-{kind}"><strong>Default {kind} address</strong><div class="box-content">{text}</div></div>'
            for kind in ("billing", "shipping")
        )
        return f"<h1>Address Book</h1>{boxes}" + links({"Edit Address": "/customer/address/edit/id/1/"})

    @route("GET", r"/customer/address/edit/id/1", login=True)
    def address_form(self, request: Request) -> str:
        a = self.address
        states = {s: s for s in ("California", "Georgia", "New York")}
        return (
            '<form method="post" action="/customer/address/save">'
            + field_("Street Address", "street", a["street"])
            + field_("City", "city", a["city"])
            + select("State/Province", "region", states, a["region"])
            + field_("Zip/Postal Code", "zip", a["zip"])
            + "<button>Save Address</button></form>"
        )

    @route("POST", r"/customer/address/save", login=True)
    def save_address(self, request: Request) -> Response:
        self.address = dict(request.form)
        return redirect("/customer/address/")

    @route("GET", r"/contact")
    def contact(self, request: Request) -> str:
        return (
            '<h1>Contact Us</h1><form method="post" action="/contact/index/post/">'
            + field_("Name", "name", "Emma Lopez")
            + '<label for="comment">What’s on your mind?</label>'
            '<textarea name="comment" id="comment" title="What’s on your mind?"></textarea><button>Submit</button></form>'
        )

    @route("POST", r"/rest/default/V1/integration/admin/token")
    def rest_token(self, request: Request) -> Response:
        data = json.loads(request.body)
        if (data.get("username"), data.get("password")) != ("admin", "admin1234"):
            return Response('{"message": "denied"}', 401, "application/json")
        return as_json("rest-token")

    @route("GET", r"/rest/V1/orders")
    def rest_orders(self, request: Request) -> Response:
        if request.headers.get("Authorization") != "Bearer rest-token":
            return Response("{}", 401, "application/json")
        newest = max(self.orders)
        return as_json({"items": [{"increment_id": f"{newest:09d}"}]})
