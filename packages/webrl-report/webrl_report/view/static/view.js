// Keys, filters that apply at once, and a look now and then at what is new. Every page works without it.
"use strict";

const POLL_MS = 3000;
const page = document.body.dataset.page;
const dialog = document.getElementById("keys");
const byId = (id) => document.getElementById(id);

function move(targets, by) {
  const at = targets.indexOf(document.activeElement);
  const next = targets[at < 0 ? (by > 0 ? 0 : targets.length - 1) : Math.min(Math.max(at + by, 0), targets.length - 1)];
  if (!next) return;
  next.focus({ preventScroll: true });
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const block = page === "list" ? "nearest" : "start";
  (next.closest("section, tr") || next).scrollIntoView({ block, behavior: calm ? "auto" : "smooth" });
}

const follow = (selector) => document.querySelector(selector)?.click();
const step = (by) => move([...document.querySelectorAll(page === "list" ? ".list .what a" : ".step > h2")], by);
const choose = (value) => document.querySelector(`#label button[value="${value}"]:enabled`)?.click();

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  ArrowRight: () => follow("main a[rel=next]"),
  ArrowLeft: () => follow("main a[rel=prev]"),
  s: () => choose("1"),
  f: () => choose("0"),
  u: () => choose(""),
  c: () => follow("#compare"),
  b: () => follow("#back"),
  r: () => document.querySelector("#live button") && location.reload(),
  "/": () => byId("q").select(),
  "?": () => dialog.showModal(),
};
if (page === "list") Object.assign(KEYS, { ArrowDown: KEYS.j, ArrowUp: KEYS.k });

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input:not([type=hidden]), select, textarea, dialog[open]");
  const scrolls = event.key.startsWith("Arrow") && event.target.closest("pre, .tokens");
  if (event.key === "Escape" && event.target.id === "q") event.target.blur();
  if (typing || scrolls || event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
});

const keysButton = byId("keys-button");
keysButton.hidden = false;
keysButton.addEventListener("click", () => dialog.showModal());

const filters = byId("filters");
if (filters) {
  document.querySelector(".filters").open = !matchMedia("(max-width: 68rem)").matches;
  document.querySelector(".apply").hidden = true;
  filters.addEventListener("change", () => filters.requestSubmit());
  filters.addEventListener("formdata", (event) => {
    for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
  });
}

const live = byId("live");

async function look() {
  if (document.hidden) return;
  try {
    const answer = await fetch(live.dataset.state);
    if (!answer.ok) return;
    const state = await answer.json();
    if (state.version === Number(live.dataset.version) || live.querySelector("button")) return;
    live.textContent = page === "list" ? `There is something new: ${state.num.toLocaleString("en")} episodes now.` : "There is something new in the run.";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Reload";
    button.addEventListener("click", () => location.reload());
    live.append(button);
  } catch {
    live.textContent = "The viewer does not answer any more.";
  }
}

if (live) setInterval(look, POLL_MS);
