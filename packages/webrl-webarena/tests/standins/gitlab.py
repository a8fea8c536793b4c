# ruff: noqa: RUF012 - markup and scripts read better on one line
"""The code host (GitLab's addresses and markup)."""

from __future__ import annotations

from .server import Request, Response, Site, esc, field_, links, redirect, route, select

ROLES = {"10": "Guest", "20": "Reporter", "30": "Developer", "40": "Maintainer"}


class GitLab(Site):
    name = "gitlab"
    title = "GitLab"
    users = {"byteblaze": "hello1234"}
    login_path = "/users/sign_in"

    def reset(self) -> None:
        super().reset()
        self.status = ""
        self.members = {"byteblaze/dotfiles": [("byteblaze", "Owner")]}
        self.projects = ["byteblaze/dotfiles", "byteblaze/empathy-prompts", "a11yproject/a11yproject.com"]
        self.issues = {
            ("a11yproject/a11yproject.com", 719): {
                "title": "homepage content audit",
                "state": "Closed",
                "due": "",
                "assignee": "",
            },
            ("byteblaze/empathy-prompts", 8): {
                "title": "Better initial load experience",
                "state": "Open",
                "due": "",
                "assignee": "",
            },
        }

    def header(self, request: Request) -> str:
        if not request.user:
            return ""
        return (
            "<nav>"
            + links(
                {
                    "Projects": "/explore",
                    "Issues": "/dashboard/issues",
                    "To-Do List": "/dashboard/todos",
                    "New project": "/projects/new",
                    "Edit profile": "/-/profile",
                    "Access Tokens": "/-/profile/personal_access_tokens",
                }
            )
            + "</nav>"
        )

    @route("GET", r"/")
    def home(self, request: Request) -> Response | str:
        return (
            "<h1>Projects</h1>GitLab" + links({p: f"/{p}" for p in self.projects})
            if request.user
            else redirect(self.login_path)
        )

    @route("GET", r"/users/sign_in")
    def login_form(self, request: Request) -> str:
        return (
            '<h1>GitLab</h1><form method="post">'
            + field_("Username or email", "user[login]")
            + field_("Password", "user[password]", kind="password")
            + "<button>Sign in</button></form>"
        )

    @route("POST", r"/users/sign_in")
    def login(self, request: Request) -> Response:
        return self.log_in(request, request.form["user[login]"], request.form["user[password]"], "/", self.login_path)

    @route("GET", r"/help")
    def help(self, request: Request) -> str:
        return "<h1>GitLab Community Edition 15.7.5</h1>"

    @route("GET", r"/explore")
    def explore(self, request: Request) -> str:
        return "<h1>Explore projects</h1>" + links({p: f"/{p}" for p in self.projects})

    @route("GET", r"/dashboard/todos", login=True)
    def todos(self, request: Request) -> str:
        return "<h1>To-Do List</h1>"

    @route("GET", r"/dashboard/issues", login=True)
    def my_issues(self, request: Request) -> str:
        return "<h1>Issues</h1>" + links({i["title"]: f"/{p}/-/issues/{n}" for (p, n), i in self.issues.items()})

    @route("GET", r"/-/profile", login=True)
    def profile(self, request: Request) -> str:
        return (
            '<h1>User Settings</h1><form method="post">'
            + field_("What's your status?", "status", self.status)
            + "<button>Update profile settings</button></form>"
        )

    @route("POST", r"/-/profile", login=True)
    def save_profile(self, request: Request) -> Response:
        self.status = request.form["status"]
        return redirect("/-/profile")

    @route("GET", r"/-/profile/personal_access_tokens", login=True)
    def tokens(self, request: Request) -> str:
        return "<h1>Feed token</h1>" + field_("Feed token", "feed_token", "TMN_bBn9Z48qVbUFZV45", extra="readonly")

    @route("GET", r"/projects/new", login=True)
    def new_project(self, request: Request) -> str:
        return (
            '<form method="post"><h1>Create blank project</h1>'
            + field_("Project name", "name")
            + "<button>Create project</button></form>"
        )

    @route("POST", r"/projects/new", login=True)
    def create_project(self, request: Request) -> Response:
        slug = f"byteblaze/{request.form['name'].replace(' ', '-')}"
        self.projects.append(slug)
        return redirect(f"/{slug}")

    @route("GET", r"/byteblaze")
    def user(self, request: Request) -> str:
        return f'<h1>Byte Blaze</h1><div class="cover-status"><span>💬</span>{esc(self.status)}</div>'

    @route("GET", r"/(\w[\w-]*/[\w.-]+)")
    def project(self, request: Request, slug: str) -> Response | str:
        if slug not in self.projects:
            return Response(self.page(request, "<h1>404</h1><p>Page Not Found</p>"), 404)
        return f"<h1>{esc(slug.split('/')[1])}</h1>" + links(
            {
                "Members": f"/{slug}/-/project_members",
                "Issues list": f"/{slug}/-/issues",
                "New issue": f"/{slug}/-/issues/new",
            }
        )

    @route("GET", r"/(\w[\w-]*/[\w.-]+)/-/project_members", login=True)
    def member_page(self, request: Request, slug: str) -> str:
        rows = "".join(
            f'<tr><td data-label="Account"><span class="gl-avatar-labeled-sublabel">@{user}</span></td>'
            f'<td class="col-max-role"><span>{role}</span></td></tr>'
            for user, role in self.members.get(slug, ())
        )
        return (
            f'<h1>Project members</h1><table>{rows}</table><form method="post"><h2>Invite members</h2>'
            + field_("Username or email address", "user")
            + select("Select a role", "role", ROLES, "10")
            + "<button>Invite</button></form>"
        )

    @route("POST", r"/(\w[\w-]*/[\w.-]+)/-/project_members", login=True)
    def invite(self, request: Request, slug: str) -> Response:
        self.members.setdefault(slug, []).append((request.form["user"], ROLES[request.form["role"]]))
        return redirect(request.path)

    @route("GET", r"/(\w[\w-]*/[\w.-]+)/-/issues")
    def issue_list(self, request: Request, slug: str) -> str:
        return "<h1>Issues</h1>" + links(
            {i["title"]: f"/{p}/-/issues/{n}" for (p, n), i in self.issues.items() if p == slug}
        )

    @route("GET", r"/(\w[\w-]*/[\w.-]+)/-/issues/new", login=True)
    def new_issue(self, request: Request, slug: str) -> str:
        people = {"": "Unassigned", "Byte Blaze": "Assign to me", "Roshan Jossy": "Roshan Jossy"}
        return (
            '<form method="post"><h1>New Issue</h1>'
            + field_("Title (required)", "title")
            + select("Assignee", "assignee", people, "")
            + field_("Due date", "due")
            + "<button>Create issue</button></form>"
        )

    @route("POST", r"/(\w[\w-]*/[\w.-]+)/-/issues/new", login=True)
    def create_issue(self, request: Request, slug: str) -> Response:
        self.issues[slug, 1500] = {"state": "Open", **request.form}
        return redirect(f"/{slug}/-/issues/1500")

    @route("GET", r"/(\w[\w-]*/[\w.-]+)/-/issues/(\d+)")
    def issue(self, request: Request, slug: str, number: str) -> str:
        i = self.issues[slug, int(number)]
        due = {"2030-01-03": "Jan 3, 2030"}.get(i["due"], i["due"] or "None")
        return (
            f'<span class="badge">{i["state"]}</span><h1 data-qa-selector="title_content">{esc(i["title"])}</h1>'
            f'<div class="block assignee">Assignee {esc(i["assignee"] or "None")}</div>'
            f'<div data-testid="sidebar-due-date">Due date {due}</div>'
        )
