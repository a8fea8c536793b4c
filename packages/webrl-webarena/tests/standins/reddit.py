"""The forum (Postmill's addresses and markup)."""

import re

from .server import Request, Response, Site, redirect, route

ME = "MarvelsGrantMan136"
FORUMS = ("books", "nyc", "gaming", "technology", "pics", "AskReddit", "MachineLearning")


class Reddit(Site):
    name = "reddit"
    title = "Postmill"
    me = ME
    users = {ME: "test1234"}  # noqa: RUF012

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

    def path_of(self, number: int) -> str:
        forum, title, _ = self.posts[number]
        slug = re.sub(r"\W+", "-", title.lower()).strip("-")[:60]
        return f"/f/{forum}/{number}/{slug}"

    @route("POST", r"/login")
    def login(self, request: Request) -> Response:
        return self.log_in(request, request.form["_username"], request.form["_password"], "/", "/login")

    @route("POST", rf"/user/{ME}/edit_biography", login=True)
    def save_bio(self, request: Request) -> Response:
        self.bio = request.form["bio"]
        return redirect(f"/user/{ME}")

    @route("POST", r"/submit/(\w+)", login=True)
    def submit(self, request: Request, name: str) -> Response:
        number = max(self.posts) + 1
        self.posts[number] = (name, request.form["title"], request.form["body"])
        return redirect(self.path_of(number))

    @route("POST", r"/vote/(\d+)", login=True)
    def vote(self, request: Request, number: str) -> Response:
        self.votes[int(number)] = f" vote--user-{'up' if request.form['choice'] == '1' else 'down'}voted"
        return redirect(self.path_of(int(number)))

    @route("POST", r"/comment/(\d+)", login=True)
    def comment(self, request: Request, number: str) -> Response:
        self.comments.setdefault(int(number), []).append(request.form["comment"])
        return redirect(self.path_of(int(number)))

    @route("GET", r"/f/(\w+)/edit", login=True)
    def edit_forum(self, request: Request, name: str) -> Response | str:
        return self.shown("edit_forum", request, name) if name in self.forums else Response("no such forum", 404)

    @route("POST", r"/create_forum", login=True)
    def create_forum(self, request: Request) -> Response:
        self.forums[request.form["name"]] = {key: request.form[key] for key in ("description", "sidebar")}
        return redirect(f"/f/{request.form['name']}")
