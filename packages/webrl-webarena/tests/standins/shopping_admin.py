"""The shop's administration (Magento Admin's addresses and markup), below /admin as in the published image."""

from .server import Request, Response, Site, redirect, route


class ShoppingAdmin(Site):
    name = "shopping_admin"
    title = "Magento Admin"
    users = {"admin": "admin1234"}  # noqa: RUF012
    base_path = "/admin"
    login_path = ""
    customers = (
        ("Grace Nguyen", "awesomeness@gmail.com", "Berkeley", "California"),
        ("Amanda Kim", "amanda@gmail.com", "Hoboken", "New Jersey"),
    )
    invoices = {"000000001": "36.39", "000000002": "39.64"}  # noqa: RUF012

    def reset(self) -> None:
        super().reset()
        self.products = {
            478: {"name": "Ryker LumaTech™ Tee (Crew-neck)", "status": "1", "price": "32.00"},
            1481: {"name": "Sahara Leggings", "status": "1", "price": "75.00"},
        }
        self.orders = {301: "Complete", 302: "Pending"}
        self.pages = {2: "Home Page"}

    @route("GET", r"/admin")
    def login_form(self, request: Request) -> Response | str:
        return redirect("/admin/dashboard") if request.user else self.shown("sign_in", request)

    @route("POST", r"/admin")
    def login(self, request: Request) -> Response:
        return self.log_in(request, request.form["username"], request.form["login"], "/admin/dashboard", "/admin")

    @route("POST", r"/admin/sales/order/cancel/order_id/(\d+)", login=True)
    def cancel(self, request: Request, number: str) -> Response:
        self.orders[int(number)] = "Canceled"
        return redirect(f"/admin/sales/order/view/order_id/{number}/")

    @route("POST", r"/admin/catalog/product/edit/id/(\d+)", login=True)
    def save_product(self, request: Request, number: str) -> Response:
        changes = {key: request.form[f"product[{key}]"] for key in ("status", "price")}
        self.products[int(number)] |= changes
        return redirect(request.path)

    @route("POST", r"/admin/cms/page/edit/page_id/(\d+)", login=True)
    def save_page(self, request: Request, number: str) -> Response:
        self.pages[int(number)] = request.form["title"]
        return redirect(request.path)
