"""The database as every session begins with it: Oscar's, machina's and Postman's tables, filled from a seed."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Mapping
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

from webrl_arena.world.content import STAFF_EMAIL, Catalogue, Customer, Order
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


def build(path: Path, content: Catalogue, talk: Forum, mail: Mail) -> None:
    """Make the database at `path`, which must not exist: the shop, and what its customers write in forum and mail."""
    path.touch(exist_ok=False)
    with using(path):
        call_command("migrate", verbosity=0, run_syncdb=True)
        with transaction.atomic():
            users = _users(content)
            products = _products(content)
            _reviews(content, users, products)
            _orders(content, users, products)
            _counters(content, users, products)
            _forum(talk, {"" if email == STAFF_EMAIL else email: user for email, user in users.items()})
            _mail(mail, users)
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


def _products(content: Catalogue) -> dict[str, Any]:
    Category, Row = get_model("catalogue", "Category"), get_model("catalogue", "Product")  # noqa: N806 - classes
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
    Row.objects.bulk_create(
        Row(
            title=product.title,
            pk=product.pk,
            slug=product.slug,
            upc=product.upc,
            description=product.description,
            product_class=of_class,
            structure="standalone",
            is_public=True,
        )
        for product in content.products
    )
    rows = {row.upc: row for row in Row.objects.all()}
    for number, product in enumerate(content.products):
        row = rows[product.upc]
        row.date_created = row.date_updated = _OPENED + datetime.timedelta(hours=number)
    Row.objects.bulk_update(rows.values(), ["date_created", "date_updated"], batch_size=200)
    Value = get_model("catalogue", "ProductAttributeValue")  # noqa: N806 - a class
    Value.objects.bulk_create(
        Value(product=rows[product.upc], attribute=attributes[name], value_text=value)
        for product in content.products
        for name, value in product.attributes
    )
    Link = get_model("catalogue", "ProductCategory")  # noqa: N806 - a class
    Link.objects.bulk_create(
        Link(product=rows[product.upc], category=categories[product.category]) for product in content.products
    )
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
    return rows


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
    records = {record.product_id: record for record in get_model("partner", "StockRecord").objects.all()}
    stock = {upc: records[product.pk] for upc, product in products.items()}
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
        Line.objects.bulk_create(
            Line(
                order=row,
                partner=stock[line.upc].partner,
                partner_name=stock[line.upc].partner.name,
                partner_sku=stock[line.upc].partner_sku,
                stockrecord=stock[line.upc],
                product=products[line.upc],
                title=line.title,
                upc=line.upc,
                quantity=line.quantity,
                line_price_incl_tax=line.price * line.quantity,
                line_price_excl_tax=line.price * line.quantity,
                line_price_before_discounts_incl_tax=line.price * line.quantity,
                line_price_before_discounts_excl_tax=line.price * line.quantity,
                unit_price_incl_tax=line.price,
                unit_price_excl_tax=line.price,
                status=order.status,
                num_allocated=0,
            )
            for line in order.lines
        )


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


def _forum(content: Forum, users: Mapping[str, User]) -> None:
    """Fill machina's tables.

    Args:
        users: by e-mail address; "" is the staff.
    """
    Row = get_model("forum", "Forum")  # noqa: N806 - a class
    categories: dict[str, Any] = {}
    boards: dict[str, Any] = {}
    for board in content.boards:
        if board.category not in categories:
            categories[board.category] = Row.objects.create(name=board.category, type=Row.FORUM_CAT)
        parent = categories[board.category]
        boards[board.name] = Row.objects.create(
            name=board.name, description=board.description, type=Row.FORUM_POST, parent=parent
        )
        assert boards[board.name].pk == board.pk
    Grant = get_model("forum_permission", "UserForumPermission")  # noqa: N806 - a class
    permissions = {row.codename: row for row in get_model("forum_permission", "ForumPermission").objects.all()}
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
    topics = _topics(content, boards, users)
    _posts(content, topics, users)
    _polls(content, topics, users)
    Profile = get_model("forum_member", "ForumProfile")  # noqa: N806 - a class
    written = Counter(post.email for topic in content.topics for post in topic.shown)
    Profile.objects.bulk_create(Profile(user=user, posts_count=written[email]) for email, user in users.items())
    for row in boards.values():
        row.update_trackers()


def _topics(content: Forum, boards: dict[str, Any], users: Mapping[str, User]) -> dict[int, Any]:
    Row = get_model("forum_conversation", "Topic")  # noqa: N806 - a class
    Row.objects.bulk_create(
        Row(
            pk=topic.pk,
            forum=boards[topic.board.name],
            poster=users[topic.posts[0].email],
            subject=topic.subject,
            slug=topic.path.split("/")[-2].rpartition("-")[0],
            type=Row.TOPIC_POST,
            status=Row.TOPIC_UNLOCKED,
            posts_count=len(topic.shown),
            views_count=topic.views,
            last_post_on=topic.shown[-1].date,
        )
        for topic in content.topics
    )
    rows = {row.pk: row for row in Row.objects.all()}
    subscribed = Row.subscribers.through
    subscribed.objects.bulk_create(
        subscribed(topic_id=topic.pk, user_id=users[email].pk)
        for topic in content.topics
        for email in topic.subscribers
    )
    return rows


def _posts(content: Forum, topics: dict[int, Any], users: Mapping[str, User]) -> None:
    Row, TopicRow = get_model("forum_conversation", "Post"), get_model("forum_conversation", "Topic")  # noqa: N806
    pairs = [(topic, post) for topic in content.topics for post in topic.posts]
    rows = [
        Row(
            pk=post.pk,
            topic_id=topic.pk,
            poster=users[post.email],
            subject=topic.subject if post is topic.posts[0] else f"Re: {topic.subject}",
            content=post.text,
            approved=post.approved,
        )
        for topic, post in pairs
    ]
    for row, (_, post) in zip(rows, pairs, strict=True):
        row._content_rendered = render_func(post.text)  # many at once are saved without machina's signals
    made = Row.objects.bulk_create(rows)
    for row, (_, post) in zip(made, pairs, strict=True):
        row.created = row.updated = post.date
    Row.objects.bulk_update(made, ["created", "updated"], batch_size=200)
    for topic in content.topics:
        row = topics[topic.pk]
        row.first_post_id, row.last_post_id = topic.posts[0].pk, topic.shown[-1].pk
        row.created = row.updated = topic.posts[0].date
    columns = ["first_post_id", "last_post_id", "created", "updated"]
    TopicRow.objects.bulk_update(topics.values(), columns, batch_size=200)


def _polls(content: Forum, topics: dict[int, Any], users: Mapping[str, User]) -> None:
    Row, Option, Vote = (  # noqa: N806 - classes
        get_model("forum_polls", name) for name in ("TopicPoll", "TopicPollOption", "TopicPollVote")
    )
    for topic in content.topics:
        if topic.poll is None:
            continue
        poll = Row.objects.create(topic=topics[topic.pk], question=topic.poll.question, max_options=1)
        options = {text: Option.objects.create(poll=poll, text=text) for text in topic.poll.options}
        Vote.objects.bulk_create(
            Vote(voter=users[email], poll_option=options[text]) for email, text in topic.poll.votes
        )
    Row.objects.update(created=content.topics[0].posts[0].date, updated=content.topics[0].posts[0].date)
    Vote.objects.update(timestamp=content.topics[0].posts[0].date)


def _mail(content: Mail, users: Mapping[str, User]) -> None:
    """Fill Postman's table."""
    rows = []
    for conversation in content.conversations:
        letters = conversation.letters
        for place, letter in enumerate(letters):
            read_at = letter.date + _READ_AFTER
            row = Message(
                pk=letter.pk,
                subject=f"{'Re: ' * (place > 0)}{conversation.subject}",
                body=letter.text,
                sender=users[letter.sender],
                recipient=users[letter.recipient],
                parent_id=letters[place - 1].pk if place else None,
                thread_id=letters[0].pk if len(letters) > 1 else None,
                sent_at=letter.date,
                read_at=read_at if letter.is_read else None,
                replied_at=letters[place + 1].date if place + 1 < len(letters) else None,
                recipient_archived=letter.folder == "archives",
                recipient_deleted_at=read_at if letter.folder == "trash" else None,
                moderation_status=STATUS_ACCEPTED,
                moderation_date=letter.date,
            )
            rows.append(row)
    Message.objects.bulk_create(rows)
