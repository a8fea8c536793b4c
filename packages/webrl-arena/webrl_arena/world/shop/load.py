"""The database as every session begins with it: Oscar's, machina's and Postman's tables, filled from a seed."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.contrib.sites.models import Site
from django.core.management import call_command
from django.db import connection, transaction
from django.utils.text import slugify
from machina.models.fields import render_func
from oscar.core.loading import get_model
from postman.models import STATUS_ACCEPTED, Message

from webrl_arena.world.content import STAFF_EMAIL, Catalogue, Order
from webrl_arena.world.forum import ANNOUNCEMENTS, SWAP, Forum
from webrl_arena.world.mail import Mail
from webrl_arena.world.shop.database.base import using

PASSWORD = "arena"
"""Of the staff and of every customer: nothing here is secret."""
_OPENED = datetime.datetime(2023, 1, 1, 9, tzinfo=datetime.UTC)
_READ = ("can_see_forum", "can_read_forum")
_WRITE = (
    *("can_start_new_topics", "can_reply_to_topics", "can_edit_own_posts", "can_delete_own_posts"),
    *("can_post_without_approval", "can_vote_in_polls"),
)
_DENIED = {ANNOUNCEMENTS: "can_start_new_topics", SWAP: "can_post_without_approval"}
"""What customers may not do in a board. The staff may do everything."""
_READ_AFTER = datetime.timedelta(minutes=5)
"""From a letter's arrival."""
_Rows = dict[str, Any]
"""Of a table, by what other tables know them by."""


def build(path: Path, content: Catalogue, talk: Forum, mail: Mail) -> None:
    """Make the database at `path`, which must not exist: the shop, and what its customers write in forum and mail."""
    path.touch(exist_ok=False)
    with using(path):
        call_command("migrate", verbosity=0, run_syncdb=True)
        with transaction.atomic():
            users, addresses = _users(content)
            products = _products(content)
            _orders(content, users, addresses, products)
            _forum(talk, {"" if email == STAFF_EMAIL else email: user for email, user in users.items()})
            _mail(mail, users)
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
            cursor.execute("VACUUM")


def _fill(model: Any, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Make rows of a table, with the dates that are given also where Django would write today's."""
    rows = list(rows)
    given = [field for field in model._meta.fields if field.name in rows[0]]
    automatic = [(field, vars(field).copy()) for field in given if hasattr(field, "auto_now")]
    for field, _ in automatic:
        field.auto_now = field.auto_now_add = False
    try:
        made: list[Any] = model.objects.bulk_create(model(**row) for row in rows)
    finally:
        for field, before in automatic:
            vars(field).update(before)
    return made


def _same(source: Any, names: str) -> dict[str, Any]:
    """Return attributes that a table has by the same names."""
    return {name: getattr(source, name) for name in names.split()}


def _users(content: Catalogue) -> tuple[_Rows, _Rows]:
    """Make the users, and return them and their addresses by e-mail address."""
    Site.objects.update_or_create(pk=1, defaults={"domain": "127.0.0.1", "name": "Larch & Lantern"})
    name = "United States of America"
    codes = {"iso_3166_1_a2": "US", "iso_3166_1_a3": "USA", "iso_3166_1_numeric": "840"}
    country = get_model("address", "Country").objects.create(
        **codes, printable_name=name, name=name, is_shipping_country=True
    )
    common = {"password": make_password(PASSWORD, salt="arena"), "date_joined": _OPENED}
    people = [
        User(username=customer.email, **_same(customer, "pk email first_name last_name"), **common)
        for customer in content.customers
    ]
    named = {"username": "staff", "email": STAFF_EMAIL, "first_name": "Shop", "last_name": "Staff"}
    User.objects.bulk_create([*people, User(**named, **common, is_staff=True, is_superuser=True)])
    users: _Rows = {user.email: user for user in User.objects.all()}
    addresses: _Rows = {
        customer.email: {
            **_same(customer, "first_name last_name line1 state postcode"),
            "line4": customer.city,
            "country": country,
            "phone_number": customer.phone,
        }
        for customer in content.customers
    }
    default = {"is_default_for_shipping": True, "is_default_for_billing": True}
    for email, address in addresses.items():
        get_model("address", "UserAddress").objects.create(user=users[email], **default, **address)
    return users, addresses


def _products(content: Catalogue) -> _Rows:
    """Make categories, products and their reviews, and return the products by UPC."""
    Category = get_model("catalogue", "Category")
    categories: dict[tuple[str, ...], Any] = {}
    for path in content.categories:
        parent = categories.get(path[:-1])
        categories[path] = parent.add_child(name=path[-1]) if parent else Category.add_root(name=path[-1])
    of_class = get_model("catalogue", "ProductClass").objects.create(
        name="Goods", requires_shipping=True, track_stock=True
    )
    attributes = {
        name: get_model("catalogue", "ProductAttribute").objects.create(
            product_class=of_class, name=name, code=slugify(name).replace("-", "_"), type="text"
        )
        for name, _ in content.products[0].attributes
    }
    kind = {"product_class": of_class, "structure": "standalone", "is_public": True}
    made = _fill(
        get_model("catalogue", "Product"),
        (
            {**_same(product, "pk title slug upc description"), **kind, "date_created": day, "date_updated": day}
            for number, product in enumerate(content.products)
            for day in [_OPENED + datetime.timedelta(hours=number)]
        ),
    )
    rows: _Rows = {row.upc: row for row in made}
    _fill(
        get_model("catalogue", "ProductAttributeValue"),
        (
            {"product": rows[product.upc], "attribute": attributes[name], "value_text": value}
            for product in content.products
            for name, value in product.attributes
        ),
    )
    _fill(
        get_model("catalogue", "ProductCategory"),
        ({"product": rows[p.upc], "category": categories[p.category]} for p in content.products),
    )
    partner = get_model("partner", "Partner").objects.create(name="Larch & Lantern warehouse")
    common = {"partner": partner, "price_currency": "USD", "date_created": _OPENED, "date_updated": _OPENED}
    _fill(
        get_model("partner", "StockRecord"),
        (
            {"product": rows[p.upc], "partner_sku": p.sku, "price": p.price, "num_in_stock": p.stock, **common}
            for p in content.products
        ),
    )
    return rows


def _orders(content: Catalogue, users: _Rows, addresses: _Rows, products: _Rows) -> None:
    """Make reviews and orders, and what Oscar counts as they come in, and shows to the staff."""
    Review = get_model("reviews", "ProductReview")  # noqa: N806 - a class
    _fill(
        Review,
        (
            {
                **_same(review, "score title body"),
                "product": products[product.upc],
                "user": users[review.email],
                "date_created": review.date,
                "status": Review.APPROVED,
            }
            for product in content.products
            for review in product.reviews
        ),
    )
    for row in products.values():
        row.update_rating()
    records = {record.product_id: record for record in get_model("partner", "StockRecord").objects.all()}
    of_user: dict[str, list[Order]] = defaultdict(list)
    sold: Counter[str] = Counter()
    for order in content.orders:
        of_user[order.email].append(order)
        sold.update({line.upc: line.quantity for line in order.lines})
        address = addresses[order.email]
        billing = {key: value for key, value in address.items() if key != "phone_number"}
        delivery = "standard" if order.shipping else "free"
        row = get_model("order", "Order").objects.create(
            **_same(order, "pk number status"),
            site_id=1,
            user=users[order.email],
            currency="USD",
            date_placed=order.date,
            **dict.fromkeys(("total_incl_tax", "total_excl_tax"), order.total),
            **dict.fromkeys(("shipping_incl_tax", "shipping_excl_tax"), order.shipping),
            shipping_method=f"{delivery.title()} delivery",
            shipping_code=f"{delivery}-delivery",
            shipping_address=get_model("order", "ShippingAddress").objects.create(**address),
            billing_address=get_model("order", "BillingAddress").objects.create(**billing),
        )
        prices = [f"line_price{when}_{kind}_tax" for when in ("", "_before_discounts") for kind in ("incl", "excl")]
        _fill(
            get_model("order", "Line"),
            (
                {
                    **_same(line, "title upc quantity"),
                    "order": row,
                    "status": order.status,
                    "num_allocated": 0,
                    "product": products[line.upc],
                    "stockrecord": record,
                    **_same(record, "partner partner_sku"),
                    "partner_name": record.partner.name,
                    **dict.fromkeys(prices, line.price * line.quantity),
                    **dict.fromkeys(("unit_price_incl_tax", "unit_price_excl_tax"), line.price),
                }
                for line in order.lines
                for record in [records[products[line.upc].pk]]
            ),
        )
    _fill(
        get_model("analytics", "UserRecord"),
        (
            {
                "user": users[email],
                "num_orders": len(orders),
                "num_order_lines": sum(len(order.lines) for order in orders),
                "num_order_items": sum(line.quantity for order in orders for line in order.lines),
                "total_spent": sum(order.total for order in orders),
                "date_last_order": orders[-1].date,
            }
            for email, orders in of_user.items()
        ),
    )
    sales = ({"product": products[upc], "num_purchases": number} for upc, number in sold.items())
    _fill(get_model("analytics", "ProductRecord"), sales)


def _forum(content: Forum, users: _Rows) -> None:
    """Fill machina's tables.

    Args:
        users: by e-mail address; "" is the staff.
    """
    Row, Topic = get_model("forum", "Forum"), get_model("forum_conversation", "Topic")  # noqa: N806 - classes
    categories: _Rows = {}
    boards: _Rows = {}
    for board in content.boards:
        if board.category not in categories:
            categories[board.category] = Row.objects.create(name=board.category, type=Row.FORUM_CAT)
        boards[board.name] = Row.objects.create(
            **_same(board, "name description"), type=Row.FORUM_POST, parent=categories[board.category]
        )
        assert boards[board.name].pk == board.pk
    permissions = {row.codename: row for row in get_model("forum_permission", "ForumPermission").objects.all()}
    Grant = get_model("forum_permission", "UserForumPermission")  # noqa: N806 - a class
    Grant.objects.bulk_create(
        [
            *(Grant(permission=permissions[name], anonymous_user=True) for name in _READ),
            *(Grant(permission=permissions[name], authenticated_user=True) for name in (*_READ, *_WRITE)),
            *(
                Grant(permission=permissions[name], authenticated_user=True, forum=boards[board], has_perm=False)
                for board, name in _DENIED.items()
            ),
        ]
    )
    _fill(
        Topic,
        (
            {
                **_same(topic, "pk subject"),
                "forum": boards[topic.board.name],
                "poster": users[topic.posts[0].email],
                "slug": topic.path.split("/")[-2].rpartition("-")[0],
                "type": Topic.TOPIC_POST,
                "status": Topic.TOPIC_UNLOCKED,
                "posts_count": len(topic.shown),
                "views_count": topic.views,
                "first_post_id": topic.posts[0].pk,
                "last_post_id": topic.shown[-1].pk,
                **dict.fromkeys(("created", "updated"), topic.posts[0].date),
                "last_post_on": topic.shown[-1].date,
            }
            for topic in content.topics
        ),
    )
    subscriptions = [(topic, email) for topic in content.topics for email in topic.subscribers]
    rows = ({"topic_id": topic.pk, "user_id": users[email].pk} for topic, email in subscriptions)
    _fill(Topic.subscribers.through, rows)
    _fill(
        get_model("forum_conversation", "Post"),
        (
            {
                **_same(post, "pk approved"),
                "topic_id": topic.pk,
                "poster": users[post.email],
                "subject": topic.subject if post is topic.posts[0] else f"Re: {topic.subject}",
                "content": post.text,
                # Rows that are made at once are saved without machina's signals.
                "_content_rendered": render_func(post.text),
                **dict.fromkeys(("created", "updated"), post.date),
            }
            for topic in content.topics
            for post in topic.posts
        ),
    )
    began = content.topics[0].posts[0].date
    for topic in content.topics:
        if topic.poll is None:
            continue
        common = {"question": topic.poll.question, "max_options": 1, "created": began, "updated": began}
        (poll,) = _fill(get_model("forum_polls", "TopicPoll"), [{"topic_id": topic.pk, **common}])
        option = get_model("forum_polls", "TopicPollOption").objects.create
        options = {text: option(poll=poll, text=text) for text in topic.poll.options}
        votes = ({"voter": users[e], "poll_option": options[text], "timestamp": began} for e, text in topic.poll.votes)
        _fill(get_model("forum_polls", "TopicPollVote"), votes)
    written = Counter(post.email for topic in content.topics for post in topic.shown)
    profiles = ({"user": user, "posts_count": written[email]} for email, user in users.items())
    _fill(get_model("forum_member", "ForumProfile"), profiles)
    for row in boards.values():
        row.update_trackers()


def _mail(content: Mail, users: _Rows) -> None:
    """Fill Postman's table."""
    _fill(
        Message,
        (
            {
                "pk": letter.pk,
                "subject": f"{'Re: ' * (place > 0)}{conversation.subject}",
                "body": letter.text,
                "sender": users[letter.sender],
                "recipient": users[letter.recipient],
                "parent_id": letters[place - 1].pk if place else None,
                "thread_id": letters[0].pk if len(letters) > 1 else None,
                "sent_at": letter.date,
                "read_at": read_at if letter.is_read else None,
                "replied_at": letters[place + 1].date if place + 1 < len(letters) else None,
                "recipient_archived": letter.folder == "archives",
                "recipient_deleted_at": read_at if letter.folder == "trash" else None,
                "moderation_status": STATUS_ACCEPTED,
                "moderation_date": letter.date,
            }
            for conversation in content.conversations
            for letters in [conversation.letters]
            for place, letter in enumerate(letters)
            for read_at in [letter.date + _READ_AFTER]
        ),
    )
