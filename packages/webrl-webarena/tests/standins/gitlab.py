"""The code host (GitLab's addresses and markup)."""

from .server import Request, Response, Site, links, redirect, route

_NEW = {"due": "", "assignee": ""}


class GitLab(Site):
    name = "gitlab"
    title = "GitLab"
    users = {"byteblaze": "hello1234"}  # noqa: RUF012
    login_path = "/users/sign_in"
    roles = {"10": "Guest", "20": "Reporter", "30": "Developer", "40": "Maintainer"}  # noqa: RUF012

    def reset(self) -> None:
        super().reset()
        self.status = ""
        self.members = {"byteblaze/dotfiles": [("byteblaze", "Owner")]}
        self.projects = ["byteblaze/dotfiles", "byteblaze/empathy-prompts", "a11yproject/a11yproject.com"]
        self.issues = {
            ("a11yproject/a11yproject.com", 719): {"title": "homepage content audit", "state": "Closed", **_NEW},
            ("byteblaze/empathy-prompts", 8): {"title": "Better initial load experience", "state": "Open", **_NEW},
        }

    def project_paths(self) -> dict[str, str]:
        return {project: f"/{project}" for project in self.projects}

    def issue_paths(self, project: str = "") -> dict[str, str]:
        return {i["title"]: f"/{p}/-/issues/{n}" for (p, n), i in self.issues.items() if project in ("", p)}

    @route("GET", r"/")
    def home(self, request: Request) -> Response | str:
        if not request.user:
            return redirect(self.login_path)
        return f"<h1>Projects</h1>GitLab{links(self.project_paths())}"

    @route("POST", r"/users/sign_in")
    def login(self, request: Request) -> Response:
        return self.log_in(request, request.form["user[login]"], request.form["user[password]"], "/", self.login_path)

    @route("POST", r"/-/profile", login=True)
    def save_profile(self, request: Request) -> Response:
        self.status = request.form["status"]
        return redirect("/-/profile")

    @route("POST", r"/projects/new", login=True)
    def create_project(self, request: Request) -> Response:
        slug = f"byteblaze/{request.form['name'].replace(' ', '-')}"
        self.projects.append(slug)
        return redirect(f"/{slug}")

    @route("GET", r"/(\w[\w-]*/[\w.-]+)")
    def project(self, request: Request, slug: str) -> Response | str:
        if slug not in self.projects:
            return Response(self.page(request, "<h1>404</h1><p>Page Not Found</p>"), 404)
        pages = {"Members": "project_members", "Issues list": "issues", "New issue": "issues/new"}
        return f"<h1>{slug.split('/')[1]}</h1>" + links({title: f"/{slug}/-/{page}" for title, page in pages.items()})

    @route("POST", r"/(\w[\w-]*/[\w.-]+)/-/project_members", login=True)
    def invite(self, request: Request, slug: str) -> Response:
        self.members.setdefault(slug, []).append((request.form["user"], self.roles[request.form["role"]]))
        return redirect(request.path)

    @route("POST", r"/(\w[\w-]*/[\w.-]+)/-/issues/new", login=True)
    def create_issue(self, request: Request, slug: str) -> Response:
        self.issues[slug, 1500] = {"state": "Open", **request.form}
        return redirect(f"/{slug}/-/issues/1500")
