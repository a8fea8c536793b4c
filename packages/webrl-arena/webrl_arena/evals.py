"""How success is measured: what the `checks` of `templates.yaml` name, each the `eval` of a task file.

API: `measured(checks, chosen)`; the functions take texts, or what was drawn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence, Sized
from types import SimpleNamespace
from typing import Any

from webrl_arena.world.content import catalogue, load_yaml
from webrl_arena.world.forum import Board, Topic, forum
from webrl_arena.world.mail import Conversation, mail
from webrl_arena.world.tracker import ShelfPage, login_of

Eval = dict[str, Any]
"""The value of a task's `eval`."""


def measured(checks: str | Sequence[str], chosen: SimpleNamespace) -> Eval:
    """Make the `eval` of a check, or of several that look into databases."""
    if not isinstance(checks, str):
        evals = [measured(check, chosen) for check in checks]
        return _eval("database", database=[query for each in evals for query in each["database"]])
    name, _, parts = checks.partition(" ")
    given: list[Any] = []
    for part in parts.split(" | "):
        alone = re.fullmatch(r"\{(\w+)\}", part)  # is what was drawn itself, not its text
        given.append(getattr(chosen, alone[1]) if alone else part.format(**vars(chosen)))
    if name in _CHECKS:
        return _CHECKS[name](*given)
    check = load_yaml("queries.yaml")[name]
    known: dict[str, Any] = {f"q{i}": quoted(text) for i, text in enumerate(given)} | {"forum": forum(), "mail": mail()}
    if "from" in check:
        is_of_one = "0}" in check["from"]  # which the first argument names
        return rows(check["columns"], check["from"].format(*given, **known), given[1:] if is_of_one else given)
    wanted = check["finds"]
    equals = wanted.format(*given) if isinstance(wanted, str) else wanted
    return finds(check["query"].format(*given, **known), equals, check.get("site", "shop"))


def _eval(kind: str, **given: Any) -> Eval:
    empty: Eval = {"reference_answers": None, "reference_url": "", "program_html": []}
    return {"eval_types": [kind], **empty, **given}


def answers(*must_include: str) -> Eval:
    """Require these texts in the agent's answer."""
    return _eval("string_match", reference_answers={"must_include": list(must_include)})


def is_answered(text: str) -> Eval:
    """Require this text as the whole answer, for what could be a part of another one ("15" of "150")."""
    return _eval("string_match", reference_answers={"exact_match": text})


def counted(things: Sized) -> Eval:
    """Require the number of these as the answer."""
    return is_answered(str(len(things)))


def leads_to(path: str, site: str = "shop") -> Eval:
    """Require the agent to end at an address; `path` below the site's."""
    return _eval("url_match", reference_url=f"__{site.upper()}__{path}", url_note="GOLD in PRED")


def searched(path: str, words: str) -> Eval:
    """Require the results of a search."""
    return leads_to(f"{path}?q={words.replace(' ', '+')}")


def leads_to_category(shelf: tuple[str, ...]) -> Eval:
    """Require the agent to end at a category's page."""
    slugs = ["-".join("".join(c if c.isalnum() else " " for c in name.lower()).split()) for name in shelf]
    return leads_to(f"/catalogue/category/{'/'.join(slugs)}_{catalogue().categories.index(shelf) + 1}/")


def shows(url: str, locator: str, *must_include: str) -> Eval:
    """Require these texts in what JavaScript finds on a page, as the agent's user then sees it, or on the `last` one.

    Its title tells pages apart whose address is a part of another one's.
    """
    target = {"url": url, "locator": locator, "required_contents": {"must_include": list(must_include)}}
    return _eval("program_html", program_html=[target])


def lists(plan: tuple[str, str], planned: Sized) -> Eval:
    """Require a tracker's query for a component and a milestone: neither fewer tickets, by another filter, nor more."""
    listed = leads_to(f"/query?component={plan[0]}&milestone={plan[1]}".replace(" ", "+"), "tracker")
    counts = shows("last", "document.querySelector('#content h1').innerText", f"({len(planned)} match")
    both = {"eval_types": [*listed["eval_types"], *counts["eval_types"]], "program_html": counts["program_html"]}
    return listed | both


def finds(query: str, equals: Any, site: str = "shop") -> Eval:
    """Require the first value that a query finds in the session's database of a site."""
    return _eval("database", database=[{"query": " ".join(query.split()), "equals": equals, "site": site}])


def rows(columns: str, tables: str, wanted: Collection[str]) -> Eval:
    """Require exactly these rows, in any order, each as one text (`columns`)."""
    query = f"SELECT group_concat(row, ' | ') FROM (SELECT {columns} AS row FROM {tables} ORDER BY row)"
    return finds(query, " | ".join(sorted(wanted)) or None)


def quoted(text: str) -> str:
    """Quote a text for a query."""
    return "'" + text.replace("'", "''") + "'"


def stock_record(upc: str, column: str, value: Any) -> Eval:
    """Require a value in a column of a product's stock record."""
    query = f"""SELECT s.{column} FROM partner_stockrecord s JOIN catalogue_product p ON p.id = s.product_id
        WHERE p.upc = {quoted(upc)}"""
    return finds(query, value if isinstance(value, int) else float(value))


_POST, _TOPIC = "forum_conversation_post", "forum_conversation_topic"


def deleted(pk: str) -> Eval:
    """Require one post, and no other, to be gone."""
    query = f"SELECT (SELECT count(*) FROM {_POST}) || ' ' || (SELECT count(*) FROM {_POST} WHERE id = {pk})"
    return finds(query, f"{forum().num_posts - 1} 0")


def approved(pk: str, decision: str = " AND approved", kept: str = "1") -> Eval:
    """Require one post to wait no more, and to be shown; with no decision and "0" kept, to be gone."""
    shown = f"SELECT count(*) FROM {_POST} WHERE id = {pk}{decision}"
    query = f"SELECT (SELECT count(*) FROM {_POST} WHERE NOT approved) || ' ' || ({shown})"
    waiting = forum().num_posts - sum(len(topic.shown) for topic in forum().topics)
    return finds(query, f"{waiting - 1} {kept}")


def subscribed(login: str, subject: str) -> Eval:
    """Require a customer's subscriptions to be those of before, with this topic or, if it was one, without it."""
    tables = f"""{_TOPIC}_subscribers s JOIN {_TOPIC} t ON t.id = s.topic_id JOIN auth_user u ON u.id = s.user_id
        WHERE u.email = {quoted(login)}"""
    before = {topic.subject for topic in forum().topics if login in topic.subscribers}
    return rows("t.subject", tables, before ^ {subject})


def voted(login: str, vote: str) -> Eval:
    """Require a customer's votes of before and a new one, as `SUBJECT OPTION`."""
    polls = [(each.subject, dict(each.poll.votes)) for each in forum().topics if each.poll]
    before = {f"{subject} {votes[login]}" for subject, votes in polls if login in votes}
    tables = f"""forum_polls_topicpollvote v JOIN forum_polls_topicpolloption o ON o.id = v.poll_option_id
        JOIN forum_polls_topicpoll p ON p.id = o.poll_id JOIN {_TOPIC} t ON t.id = p.topic_id
        JOIN auth_user u ON u.id = v.voter_id WHERE u.email = {quoted(login)}"""
    return rows("t.subject || ' ' || o.text", tables, {*before, vote})


def moved(topic: Topic, board: Board) -> Eval:
    """Require a topic in another board, and no other one there that was not."""
    there = sum(each.board == board for each in forum().topics)
    query = f"""SELECT f.name || ' ' || (SELECT count(*) FROM {_TOPIC} o WHERE o.forum_id = f.id)
        FROM {_TOPIC} t JOIN forum_forum f ON f.id = t.forum_id WHERE t.id = {topic.pk}"""
    return finds(query, f"{board.name} {there + 1}")


def reported(summary: str, component: str, reporter: str, priority: str = "major") -> Eval:
    """Require one ticket of this summary; the reporter by log-in or e-mail address."""
    query = f"""SELECT group_concat(component || ', ' || priority || ', ' || reporter) FROM ticket
        WHERE summary = {quoted(summary)}"""
    return finds(query, f"{component}, {priority}, {login_of(reporter)}", "tracker")


def moved_to_aisle(page: ShelfPage, aisle: str) -> Eval:
    """Require another aisle in the wiki's page about a shelf, and the supplier as it was."""
    parts = " AND ".join(
        f"instr(replace(text, ' ', ''), {quoted(part.replace(' ', ''))}) > 0"
        for part in (f"Aisle =|| {aisle} ||", f"Supplier =|| {page.supplier} ||")
    )
    query = f"SELECT {parts} FROM wiki WHERE name = {quoted(page.name)} ORDER BY version DESC"
    return finds(query, 1, "tracker")


def archived(found: Conversation) -> Eval:
    """Require this in its recipient's archives, and what was there before."""
    return _are("m.recipient_archived", found, {*_folder(found, "archives"), found.letters[0].pk})


def put_in_trash(found: Conversation) -> Eval:
    """Require this in its recipient's trash if it was not there, else only the others."""
    return _are("m.recipient_deleted_at IS NOT NULL", found, _folder(found, "trash") ^ {found.letters[0].pk})


def unread(found: Conversation) -> Eval:
    """Require that this message is unread again; which others are read on the way does not matter."""
    before = ", ".join(str(each.pk) for each in mail().letters if not each.is_read)
    return _are(f"m.read_at IS NULL AND m.id NOT IN ({before})", found, {found.letters[0].pk})


def _are(condition: str, found: Conversation, pks: set[int]) -> Eval:
    """Require that a condition holds of these messages to the recipient of a conversation, and of no others."""
    tables = f"""postman_message m JOIN auth_user u ON u.id = m.recipient_id
        WHERE u.email = {quoted(found.letters[0].recipient)} AND {condition}"""
    return rows("m.id", tables, {str(pk) for pk in pks})


def _folder(found: Conversation, name: str) -> set[int]:
    login = found.letters[0].recipient
    return {letter.pk for letter in mail().letters if letter.recipient == login and letter.folder == name}


_CHECKS: dict[str, Callable[..., Eval]] = {
    check.__name__: check
    for check in (
        *(answers, is_answered, counted, leads_to, searched, leads_to_category, shows),
        *(lists, stock_record, deleted, approved, subscribed, voted, moved, reported, moved_to_aisle),
        *(archived, put_in_trash, unread),
    )
}
"""Those that are more than a query of `queries.yaml`."""
