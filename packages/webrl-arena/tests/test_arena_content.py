"""What the arena's shop sells: enough, all different, and the same on every machine."""

import hashlib
import os
import re
import subprocess
import sys

import pytest

from webrl_arena.world.content import STATUSES, catalogue, for_evaluation, load_words
from webrl_arena.world.forum import forum
from webrl_arena.world.mail import mail
from webrl_arena.world.tracker import tracker

_DIGEST = """import hashlib
from webrl_arena.world.content import catalogue
from webrl_arena.world.forum import forum
from webrl_arena.world.mail import mail
from webrl_arena.world.tracker import tracker
made = catalogue({0}), forum({0}), mail({0}), tracker({0})
print(hashlib.sha256(repr(made).encode()).hexdigest())"""


def test_there_is_enough_to_look_for_and_no_two_things_share_a_name() -> None:
    content = catalogue()
    assert len(content.products) >= 500
    assert len(content.customers) >= 150
    assert len(content.orders) >= 300
    for values in (
        [product.title for product in content.products],
        [product.upc for product in content.products],
        [product.sku for product in content.products],
        [product.slug for product in content.products],
        [customer.email for customer in content.customers],
        [customer.name for customer in content.customers],
        [order.number for order in content.orders],
    ):
        assert len(set(values)) == len(values)
    assert [product.pk for product in content.products] == list(range(1, len(content.products) + 1))
    assert {order.status for order in content.orders} == set(STATUSES)
    assert any(product.stock == 0 for product in content.products)
    assert sum(len(product.reviews) for product in content.products) > 1000


def test_all_that_refers_to_something_refers_to_something_that_is_there() -> None:
    content = catalogue()
    emails = {customer.email: customer.name for customer in content.customers}
    upcs = {product.upc: product for product in content.products}
    for product in content.products:
        assert product.category in content.categories
        assert len({review.email for review in product.reviews}) == len(product.reviews)  # the shop allows one each
        assert all(emails[review.email] == review.author and 1 <= review.score <= 5 for review in product.reviews)
    for order in content.orders:
        assert emails[order.email] == order.customer
        assert all((upcs[line.upc].title, upcs[line.upc].price) == (line.title, line.price) for line in order.lines)
        assert order.total == sum(line.quantity * line.price for line in order.lines) + order.shipping
    assert [order.date for order in content.orders] == sorted(order.date for order in content.orders)


def test_a_product_code_is_a_valid_ean() -> None:
    for product in catalogue().products:
        digits = [int(digit) for digit in product.upc]
        assert len(digits) == 13
        assert (sum(digits[::2]) + 3 * sum(digits[1::2])) % 10 == 0


@pytest.mark.parametrize("seed", [0, 7])
def test_another_process_with_another_hash_seed_makes_the_same_content(seed: int) -> None:
    made = subprocess.run(
        [sys.executable, "-c", _DIGEST.format(seed)],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    here = catalogue(seed), forum(seed), mail(seed), tracker(seed)
    assert made.stdout.strip() == hashlib.sha256(repr(here).encode()).hexdigest()


def test_another_seed_makes_another_shop() -> None:
    assert catalogue(1) != catalogue(0)


def test_slugs_and_mail_addresses_are_plain() -> None:
    content = catalogue()
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", product.slug) for product in content.products)
    assert all(re.fullmatch(r"[a-z]+\.[a-z]+@example\.com", customer.email) for customer in content.customers)


def test_the_forum_has_topics_enough_which_all_differ_and_keep_the_evaluation_s_people_to_themselves() -> None:
    content = forum()
    assert len(content.topics) >= 180
    assert len({topic.subject for topic in content.topics}) == len(content.topics)
    assert len({topic.path for topic in content.topics}) == len(content.topics)
    posts = [post for topic in content.topics for post in topic.posts]
    assert [post.pk for post in posts] == list(range(1, content.num_posts + 1))
    assert len(posts) >= 600
    assert len({post.author for post in posts}) >= 120
    people = {person.email: for_evaluation(i) for i, person in enumerate(catalogue().customers)}
    products = {product.upc: for_evaluation(i) for i, product in enumerate(catalogue().products)}
    for topic in content.topics:
        dates = [post.date for post in topic.posts]
        assert dates == sorted(set(dates))
        voters = [email for email, _ in topic.poll.votes] if topic.poll else []
        emails = [*(post.email for post in topic.posts), *voters]
        assert {people[email] for email in emails if email} <= {topic.evaluation}
        assert set(topic.subscribers) <= {post.email for post in topic.posts}
        assert topic.posts[0].approved
        if topic.product:
            assert products[topic.product.upc] == topic.evaluation
            assert topic.product.title in topic.posts[0].text
            assert topic.asks in load_words("forum").asks
