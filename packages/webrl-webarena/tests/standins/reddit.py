# ruff: noqa: E501, RUF012 - markup and scripts read better on one line
"""The forum (Postmill's addresses and markup)."""

from __future__ import annotations

import re

from .server import Request, Response, Site, esc, field_, links, redirect, route

ME = "MarvelsGrantMan136"
FORUMS = ("books", "nyc", "gaming", "technology", "pics", "AskReddit", "MachineLearning")


def slug_of(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")[:60]


class Reddit(Site):
    name = "reddit"
    title = "Postmill"
    users = {ME: "test1234"}

    def reset(self) -> None:
        super().reset()
        self.bio = ""
        self.votes: dict[int, str] = {}
        self.comments: dict[int, list[str]] = {}
        self.subscriptions: list[str] = []
        self.forums = {name: {"description": name, "sidebar": ""} for name in FORUMS}
        self.posts = {
            124260: ("books", "Adults reading to each other out loud", "We read aloud."),
            134852: ("technology", "AI experts disown Musk-backed campaign citing their research", "Link"),
        }

    def header(self, request: Request) -> str:
        account = (
            {ME: f"/user/{ME}", "Submit": "/submit", "Create forum": "/create_forum"}
            if request.user
            else {"Log in": "/login"}
        )
        return f"<nav>{links({'Home': '/', 'Forums': '/forums'} | account)}</nav>"

    def page(self, request: Request, body: str) -> str:
        return (
            super()
            .page(request, body)
            .replace("</body>", '<footer>Running <a href="https://postmill.xyz/">Postmill</a> 2.0</footer></body>')
        )

    @route("GET", r"/")
    def home(self, request: Request) -> str:
        subscribed = links({name: f"/f/{name}" for name in self.subscriptions})
        return f'<h1>Featured forums</h1><aside id="sidebar"><section>{subscribed}</section></aside>'

    @route("GET", r"/login")
    def login_form(self, request: Request) -> str:
        return (
            '<form method="post">'
            + field_("Username", "_username")
            + field_("Password", "_password", kind="password")
            + "<button>Log in</button></form>"
        )

    @route("POST", r"/login")
    def login(self, request: Request) -> Response:
        return self.log_in(request, request.form["_username"], request.form["_password"], "/", "/login")

    @route("GET", rf"/user/{ME}")
    def user(self, request: Request) -> str:
        return f'<h1>{ME}</h1><div class="user-bio__biography">{esc(self.bio)}</div>' + links(
            {"Edit biography": f"/user/{ME}/edit_biography", "Account settings": f"/user/{ME}/account"}
        )

    @route("GET", rf"/user/{ME}/account", login=True)
    def account(self, request: Request) -> str:
        return "<h1>Account</h1><button>Delete account</button>"

    @route("GET", rf"/user/{ME}/edit_biography", login=True)
    def bio_form(self, request: Request) -> str:
        return f'<form method="post"><label for="bio">Biography</label><textarea id="bio" name="bio">{esc(self.bio)}</textarea><button>Save</button></form>'

    @route("POST", rf"/user/{ME}/edit_biography", login=True)
    def save_bio(self, request: Request) -> Response:
        self.bio = request.form["bio"]
        return redirect(f"/user/{ME}")

    @route("GET", r"/forums")
    def forum_list(self, request: Request) -> str:
        return "<h1>List of forums</h1>" + links({name: f"/f/{name}" for name in self.forums})

    @route("GET", r"/f/(\w+)")
    def forum(self, request: Request, name: str) -> str:
        posts = {title: f"/f/{f}/{n}/{slug_of(title)}" for n, (f, title, _) in self.posts.items() if f == name}
        return f"<h1>/f/{name}</h1>{links({'Submit here': f'/submit/{name}'} if request.user else {})}{links(posts)}"

    @route("GET", r"/submit/(\w+)", login=True)
    def submit_form(self, request: Request, name: str) -> str:
        return (
            '<form method="post">'
            + field_("Title", "title")
            + '<label for="body">Body</label><textarea id="body" name="body"></textarea>'
            "<button>Create submission</button></form>"
        )

    @route("POST", r"/submit/(\w+)", login=True)
    def submit(self, request: Request, name: str) -> Response:
        number = max(self.posts) + 1
        self.posts[number] = (name, request.form["title"], request.form["body"])
        return redirect(f"/f/{name}/{number}/{slug_of(request.form['title'])}")

    @route("GET", r"/f/(\w+)/(\d+)(?:/[\w-]*)?")
    def post(self, request: Request, name: str, number: str) -> str:
        _, title, body = self.posts[int(number)]
        vote = self.votes.get(int(number), "")
        comments = "".join(
            f'<article class="comment"><div class="comment__body">{esc(text)}</div></article>'
            for text in reversed(self.comments.get(int(number), []))
        )
        form = (
            f'<form method="post" action="/comment/{number}"><label for="comment">Comment</label>'
            '<textarea id="comment" name="comment"></textarea><button>Post</button></form>'
            if request.user
            else ""
        )
        return (
            f'<article class="submission"><div class="submission__inner"><h1 class="submission__title">{esc(title)}</h1>'
            f'<div class="submission__body">{esc(body)}</div></div><div class="submission__vote">'
            f'<form method="post" action="/vote/{number}" class="vote{vote}"><button name="choice" value="1" title="Upvote">Upvote</button>'
            f'<button name="choice" value="-1" title="Downvote">Downvote</button></form></div></article>{form}{comments}'
        )

    @route("POST", r"/vote/(\d+)", login=True)
    def vote(self, request: Request, number: str) -> Response:
        self.votes[int(number)] = " vote--user-upvoted" if request.form["choice"] == "1" else " vote--user-downvoted"
        return self._to_post(int(number))

    @route("POST", r"/comment/(\d+)", login=True)
    def comment(self, request: Request, number: str) -> Response:
        self.comments.setdefault(int(number), []).append(request.form["comment"])
        return self._to_post(int(number))

    def _to_post(self, number: int) -> Response:
        name, title, _ = self.posts[number]
        return redirect(f"/f/{name}/{number}/{slug_of(title)}")

    @route("GET", r"/create_forum", login=True)
    def forum_form(self, request: Request) -> str:
        return self._forum_form("", {"description": "", "sidebar": ""}, "Create forum")

    @route("GET", r"/f/(\w+)/edit", login=True)
    def edit_forum(self, request: Request, name: str) -> Response | str:
        return (
            self._forum_form(name, self.forums[name], "Save changes")
            if name in self.forums
            else Response("no such forum", 404)
        )

    @route("POST", r"/create_forum", login=True)
    def create_forum(self, request: Request) -> Response:
        self.forums[request.form["name"]] = {key: request.form[key] for key in ("description", "sidebar")}
        return redirect(f"/f/{request.form['name']}")

    @staticmethod
    def _forum_form(name: str, data: dict[str, str], button: str) -> str:
        return (
            f'<form method="post">{field_("Name", "name", name)}<label for="forum_description">Description</label>'
            f'<textarea id="forum_description" name="description">{esc(data["description"])}</textarea>'
            f'<label for="forum_sidebar">Sidebar</label><textarea id="forum_sidebar" name="sidebar">{esc(data["sidebar"])}</textarea>'
            f"<button>{button}</button></form>"
        )
