"""The database as every session begins with it: Oscar's, machina's and Postman's tables, filled from a seed."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.contrib.sites.models import Site
from django.core.management import call_command
from django.db import transaction
from django.utils.text import slugify
from oscar.core.loading import get_model

from webrl.arena.content import STAFF_EMAIL, Catalogue, Customer, Order, Product
from webrl.arena.forum.content import Forum
from webrl.arena.mail.content import Mail
from webrl.arena.shop.database.base import using
from webrl.arena.shop.forum.load import load as load_forum
from webrl.arena.shop.mail import load as load_mail

PASSWORD = "arena"
"""Of the staff and of every customer: nothing here is secret."""
_OPENED = datetime.datetime(2023, 1, 1, 9, tzinfo=datetime.UTC)


def build(path: Path, content: Catalogue, talk: Forum, mail: Mail) -> None:
    """Make the database at `path`, which must not exist: the shop, and what its customers write in forum and mail."""
    path.touch(exist_ok=False)
    with using(path):
        call_command("migrate", verbosity=0, run_syncdb=True)
        with transaction.atomic():
            users = _users(content)
            products = _products(content, _categories(content))
            _reviews(content, users, products)
            _orders(content, users, products)
            _counters(content, users, products)
            load_forum(talk, {"" if email == STAFF_EMAIL else email: user for email, user in users.items()})
            load_mail(mail, users)
        _compact()


def _compact() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        cursor.execute("VACUUM")


def _users(content: Catalogue) -> dict[str, User]:
    Site.objects.update_or_create(pk=1, defaults={"domain": "127.0.0.1", "name": "Larch & Lantern"})
    country = get_model("address", "Country").objects.create(
        iso_3166_1_a2="US",
        iso_3166_1_a3="USA",
        iso_3166_1_numeric="840",
        printable_name="United States of America",
        name="United States of America",
        is_shipping_country=True,
    )
    password = make_password(PASSWORD, salt="arena")
    people = [
        User(
            pk=customer.pk,
            username=customer.email,
            email=customer.email,
            first_name=customer.first_name,
            last_name=customer.last_name,
            password=password,
            date_joined=_OPENED,
        )
        for customer in content.customers
    ]
    staff = User(
        username="staff",
        email=STAFF_EMAIL,
        first_name="Shop",
        last_name="Staff",
        password=password,
        date_joined=_OPENED,
        is_staff=True,
        is_superuser=True,
    )
    User.objects.bulk_create([*people, staff])
    users = {user.email: user for user in User.objects.all()}
    Address = get_model("address", "UserAddress")  # noqa: N806 - a class
    for customer in content.customers:
        Address.objects.create(
            user=users[customer.email],
            is_default_for_shipping=True,
            is_default_for_billing=True,
            **_address(customer, country),
        )
    return users


def _address(customer: Customer, country: Any) -> dict[str, Any]:
    return {
        "first_name": customer.first_name,
        "last_name": customer.last_name,
        "line1": customer.line1,
        "line4": customer.city,
        "state": customer.state,
        "postcode": customer.postcode,
        "country": country,
        "phone_number": customer.phone,
    }


def _categories(content: Catalogue) -> dict[tuple[str, ...], Any]:
    Category = get_model("catalogue", "Category")
    made: dict[tuple[str, ...], Any] = {}
    for path in content.categories:
        parent = made.get(path[:-1])
        made[path] = parent.add_child(name=path[-1]) if parent else Category.add_root(name=path[-1])
    return made


def _products(content: Catalogue, categories: dict[tuple[str, ...], Any]) -> dict[str, Any]:
    Row, Value = get_model("catalogue", "Product"), get_model("catalogue", "ProductAttributeValue")  # noqa: N806
    of_class = get_model("catalogue", "ProductClass").objects.create(
        name="Goods", requires_shipping=True, track_stock=True
    )
    names = [name for name, _ in content.products[0].attributes]
    attributes = {
        name: get_model("catalogue", "ProductAttribute").objects.create(
            product_class=of_class, name=name, code=slugify(name).replace("-", "_"), type="text"
        )
        for name in names
    }
    Row.objects.bulk_create(_row(Row, product, of_class) for product in content.products)
    rows = {row.upc: row for row in Row.objects.all()}
    for number, product in enumerate(content.products):
        row = rows[product.upc]
        row.date_created = row.date_updated = _OPENED + datetime.timedelta(hours=number)
    Row.objects.bulk_update(rows.values(), ["date_created", "date_updated"], batch_size=200)
    Value.objects.bulk_create(
        Value(product=rows[product.upc], attribute=attributes[name], value_text=value)
        for product in content.products
        for name, value in product.attributes
    )
    get_model("catalogue", "ProductCategory").objects.bulk_create(
        get_model("catalogue", "ProductCategory")(product=rows[product.upc], category=categories[product.category])
        for product in content.products
    )
    _stock(content, rows)
    return rows


def _row(row: Any, product: Product, of_class: Any) -> Any:
    return row(
        title=product.title,
        pk=product.pk,
        slug=product.slug,
        upc=product.upc,
        description=product.description,
        product_class=of_class,
        structure="standalone",
        is_public=True,
    )


def _stock(content: Catalogue, rows: dict[str, Any]) -> None:
    StockRecord = get_model("partner", "StockRecord")
    partner = get_model("partner", "Partner").objects.create(name="Larch & Lantern warehouse")
    StockRecord.objects.bulk_create(
        StockRecord(
            product=rows[product.upc],
            partner=partner,
            partner_sku=product.sku,
            price_currency="USD",
            price=product.price,
            num_in_stock=product.stock,
        )
        for product in content.products
    )
    StockRecord.objects.update(date_created=_OPENED, date_updated=_OPENED)


def _reviews(content: Catalogue, users: dict[str, User], products: dict[str, Any]) -> None:
    Review = get_model("reviews", "ProductReview")  # noqa: N806 - a class
    pairs = [(product, review) for product in content.products for review in product.reviews]
    made = Review.objects.bulk_create(
        Review(
            product=products[product.upc],
            user=users[review.email],
            score=review.score,
            title=review.title,
            body=review.body,
            status=Review.APPROVED,
        )
        for product, review in pairs
    )
    for row, (_, review) in zip(made, pairs, strict=True):
        row.date_created = review.date
    Review.objects.bulk_update(made, ["date_created"], batch_size=200)
    for row in products.values():
        row.update_rating()


def _orders(content: Catalogue, users: dict[str, User], products: dict[str, Any]) -> None:
    Row, Line = get_model("order", "Order"), get_model("order", "Line")  # noqa: N806 - classes
    Shipping, Billing = get_model("order", "ShippingAddress"), get_model("order", "BillingAddress")  # noqa: N806
    country = get_model("address", "Country").objects.get()
    stock = {record.product_id: record for record in get_model("partner", "StockRecord").objects.all()}
    customers = {customer.email: customer for customer in content.customers}
    for order in content.orders:
        address = _address(customers[order.email], country)
        billing = {key: value for key, value in address.items() if key != "phone_number"}
        row = Row.objects.create(
            pk=order.pk,
            number=order.number,
            site_id=1,
            user=users[order.email],
            currency="USD",
            total_incl_tax=order.total,
            total_excl_tax=order.total,
            shipping_incl_tax=order.shipping,
            shipping_excl_tax=order.shipping,
            shipping_method="Standard delivery" if order.shipping else "Free delivery",
            shipping_code="standard-delivery" if order.shipping else "free-delivery",
            status=order.status,
            date_placed=order.date,
            shipping_address=Shipping.objects.create(**address),
            billing_address=Billing.objects.create(**billing),
        )
        Line.objects.bulk_create(_line(Line, row, line, order.status, products, stock) for line in order.lines)


def _counters(content: Catalogue, users: dict[str, User], products: dict[str, Any]) -> None:
    """What Oscar counts as orders come in, and shows to the staff."""
    UserRecord, ProductRecord = get_model("analytics", "UserRecord"), get_model("analytics", "ProductRecord")  # noqa: N806
    of_user: dict[str, list[Order]] = defaultdict(list)
    sold: Counter[str] = Counter()
    for order in content.orders:
        of_user[order.email].append(order)
        sold.update({line.upc: line.quantity for line in order.lines})
    UserRecord.objects.bulk_create(
        UserRecord(
            user=users[email],
            num_orders=len(orders),
            num_order_lines=sum(len(order.lines) for order in orders),
            num_order_items=sum(line.quantity for order in orders for line in order.lines),
            total_spent=sum(order.total for order in orders),
            date_last_order=orders[-1].date,
        )
        for email, orders in of_user.items()
    )
    ProductRecord.objects.bulk_create(ProductRecord(product=products[upc], num_purchases=n) for upc, n in sold.items())


def _line(row: Any, order: Any, line: Any, status: str, products: dict[str, Any], stock: dict[int, Any]) -> Any:
    product = products[line.upc]
    record, total = stock[product.pk], line.price * line.quantity
    return row(
        order=order,
        partner=record.partner,
        partner_name=record.partner.name,
        partner_sku=record.partner_sku,
        stockrecord=record,
        product=product,
        title=line.title,
        upc=line.upc,
        quantity=line.quantity,
        line_price_incl_tax=total,
        line_price_excl_tax=total,
        line_price_before_discounts_incl_tax=total,
        line_price_before_discounts_excl_tax=total,
        unit_price_incl_tax=line.price,
        unit_price_excl_tax=line.price,
        status=status,
        num_allocated=0,
    )
