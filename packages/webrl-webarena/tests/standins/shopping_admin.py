# ruff: noqa: E501, RUF012 - markup and scripts read better on one line
"""The shop's administration (Magento Admin's addresses and markup), below /admin as in the published image."""

from __future__ import annotations

from .server import Request, Response, Site, esc, field_, links, redirect, route, select

CUSTOMERS = (
    ("Grace Nguyen", "awesomeness@gmail.com", "Berkeley", "California"),
    ("Amanda Kim", "amanda@gmail.com", "Hoboken", "New Jersey"),
)
INVOICES = {"000000001": "36.39", "000000002": "39.64"}


class ShoppingAdmin(Site):
    name = "shopping_admin"
    title = "Magento Admin"
    users = {"admin": "admin1234"}
    base_path = "/admin"
    login_path = ""

    def reset(self) -> None:
        super().reset()
        self.products = {
            478: {"name": "Ryker LumaTech™ Tee (Crew-neck)", "status": "1", "price": "32.00"},
            1481: {"name": "Sahara Leggings", "status": "1", "price": "75.00"},
        }
        self.orders = {301: "Complete", 302: "Pending"}
        self.pages = {2: "Home Page"}
        self.reviews = {"Pending": 5, "Approved": 346}

    def header(self, request: Request) -> str:
        if not request.user:
            return ""
        return (
            "<nav>"
            + links(
                {
                    "Dashboard": "/admin/dashboard",
                    "Orders": "/admin/sales/order/",
                    "Invoices": "/admin/sales/invoice/",
                    "Products": "/admin/catalog/product/",
                    "All Customers": "/admin/customer/index/",
                    "Pages": "/admin/cms/page/",
                    "Pending Reviews": "/admin/review/product/pending/",
                    "Sales Report": "/admin/reports/report_sales/sales/",
                }
            )
            + "</nav>"
        )

    @route("GET", r"/admin")
    def login_form(self, request: Request) -> Response | str:
        if request.user:
            return redirect("/admin/dashboard")
        return (
            '<form method="post" class="admin__form"><h1>Welcome, please sign in</h1>'
            + field_("Username", "username", extra='placeholder="user name"')
            + field_("Password", "login", kind="password")
            + "<button>Sign in</button></form>"
        )

    @route("POST", r"/admin")
    def login(self, request: Request) -> Response:
        return self.log_in(request, request.form["username"], request.form["login"], "/admin/dashboard", "/admin")

    @route("GET", r"/admin/dashboard", login=True)
    def dashboard(self, request: Request) -> str:
        return "<h1>Dashboard</h1>"

    @route("GET", r"/magento_version")
    def version(self, request: Request) -> Response:
        return Response("Magento/2.4 (Community)", type="text/plain")

    @route("GET", r"/admin/customer/index", login=True)
    def customers(self, request: Request) -> str:
        rows = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in customer) + "</tr>" for customer in CUSTOMERS)
        return f"<h1>Customers</h1><table>{rows}</table>"

    @route("GET", r"/admin/sales/invoice", login=True)
    def invoices(self, request: Request) -> str:
        rows = "".join(f"<tr><td>{number}</td><td>Grand Total ${total}</td></tr>" for number, total in INVOICES.items())
        return f"<h1>Invoices</h1><table>{rows}</table>"

    @route("GET", r"/admin/review/product/pending", login=True)
    def pending(self, request: Request) -> str:
        return f"<h1>Pending Reviews</h1><p>{self.reviews['Pending']} records found</p>"

    @route("GET", r"/admin/sales/order", login=True)
    def order_list(self, request: Request) -> str:
        rows = "".join(
            f"<tr><td>000000{n}</td><td>{s}</td><td>{links({f'View {n}': f'/admin/sales/order/view/order_id/{n}/'})}</td></tr>"
            for n, s in self.orders.items()
        )
        return f"<h1>Orders</h1><table>{rows}</table>"

    @route("GET", r"/admin/sales/order/view/order_id/(\d+)", login=True)
    def order(self, request: Request, number: str) -> str:
        return (
            f'<h1>#000000{number}</h1>Order Status <span id="order_status">{self.orders[int(number)]}</span>'
            f'<form method="post" action="/admin/sales/order/cancel/order_id/{number}/"><button>Cancel</button></form>'
        )

    @route("POST", r"/admin/sales/order/cancel/order_id/(\d+)", login=True)
    def cancel(self, request: Request, number: str) -> Response:
        self.orders[int(number)] = "Canceled"
        return redirect(f"/admin/sales/order/view/order_id/{number}/")

    @route("GET", r"/admin/catalog/product", login=True)
    def product_list(self, request: Request) -> str:
        items = {f"Edit {p['name']}": f"/admin/catalog/product/edit/id/{n}/" for n, p in self.products.items()}
        return f"<h1>Products</h1>{links(items)}"

    @route("GET", r"/admin/catalog/product/edit/id/(\d+)", login=True)
    def product(self, request: Request, number: str) -> str:
        p = self.products[int(number)]
        status = select("Enable Product", "product[status]", {"1": "Yes", "2": "No"}, p["status"])
        return (
            f'<h1>{esc(p["name"])}</h1><form method="post">{status}{field_("Price", "product[price]", p["price"])}'
            "<button>Save</button></form>"
        )

    @route("POST", r"/admin/catalog/product/edit/id/(\d+)", login=True)
    def save_product(self, request: Request, number: str) -> Response:
        self.products[int(number)] |= {
            "status": request.form["product[status]"],
            "price": request.form["product[price]"],
        }
        return redirect(request.path)

    @route("GET", r"/admin/cms/page", login=True)
    def page_list(self, request: Request) -> str:
        return "<h1>Pages</h1>" + links(
            {f"Edit {title}": f"/admin/cms/page/edit/page_id/{n}/" for n, title in self.pages.items()}
        )

    @route("GET", r"/admin/cms/page/edit/page_id/(\d+)", login=True)
    def cms_page(self, request: Request, number: str) -> str:
        return (
            f'<form method="post">{field_("Page Title", "title", self.pages[int(number)])}<button>Save</button></form>'
        )

    @route("POST", r"/admin/cms/page/edit/page_id/(\d+)", login=True)
    def save_page(self, request: Request, number: str) -> Response:
        self.pages[int(number)] = request.form["title"]
        return redirect(request.path)

    @route("GET", r"/admin/reports/report_sales/sales(?:/filter/[^/]*)?", login=True)
    def report(self, request: Request) -> str:
        start, end = request.query.get("from", ""), request.query.get("to", "")
        return (
            '<h1>Orders Report</h1><form action="/admin/reports/report_sales/sales/">'
            f'<label for="sales_report_from">From</label><input id="sales_report_from" name="from" value="{esc(start)}">'
            f'<label for="sales_report_to">To</label><input id="sales_report_to" name="to" value="{esc(end)}">'
            "<button>Show Report</button></form>"
        )
