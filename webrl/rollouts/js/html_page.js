// Runs in the page and returns {html, width, height}, the labels with their bids, and the numbers of what the copy lacks.
// `html` is a copy of the document in which every element carries what the simplifier (../html.py) reads: data-bbox,
// data-text, data-value, data-status, data-label-id.
//
// The page itself is not altered. The rules are those of VAB-WebArena-Lite's `html_tools`, which writes these
// attributes into the page and removes them only from elements that were clickable the step before; on all
// others they go stale (a closed menu keeps its boxes). Released checkpoints were trained on that, so the
// notes of earlier observations are kept in a WeakMap and merged into the copy.
() => {
  const { ask } = __webrl; // a form's `children` is its field of that name
  const memory = (window[Symbol.for("webrl.html")] ??= { notes: new WeakMap(), clickable: [] });
  memory.labels = new Map();
  const NOTED = ["data-value", "data-text", "data-label", "data-bbox", "data-status", "data-label-id"];
  const root = document.documentElement;
  if (!root) return { html: "", width: 0, height: 0, labels: [], lacks: {} };
  const width = Math.max(root.clientWidth || 0, window.innerWidth || 0);
  const height = Math.max(root.clientHeight || 0, window.innerHeight || 0);
  const all = [...document.querySelectorAll("*")];

  const note = (element, name, value) => {
    let notes = memory.notes.get(element);
    if (!notes) memory.notes.set(element, (notes = new Map()));
    notes.set(name, value);
  };

  const forgetClickable = () => {
    for (const element of memory.clickable) {
      if (ask(element, "isConnected")) for (const name of NOTED) note(element, name, null);
    }
    memory.clickable = memory.clickable.filter((element) => !ask(element, "isConnected"));
  };

  const tidy = (text) => text.trim().replace(/\s{2,}/g, " ");
  const tagOf = (element) => ask(element, "localName").toLowerCase();

  const noteBox = (element) => {
    const [box] = ask(element, "getClientRects");
    if (!box) return;
    const [left, top, right, bottom] = [box.left, box.top, box.right, box.bottom].map(Math.round);
    note(element, "data-bbox", [left, top, right - left, bottom - top].join(","));
  };

  const noteText = (element) => {
    if (!ask(element, "hasChildNodes")) return;
    const texts = [...ask(element, "childNodes")].filter((node) => node.nodeType === Node.TEXT_NODE);
    note(element, "data-text", texts.map((node) => tidy(node.textContent)).filter(Boolean).join(","));
  };

  const noteState = (element) => {
    const tag = tagOf(element);
    if (tag === "select") {
      const option = element.options[element.selectedIndex];
      note(element, "data-value", element.value);
      note(element, "data-text", option?.text || "");
      if (option) note(option, "data-status", "selected");
    } else if (tag === "input" || tag === "textarea") {
      note(element, "data-value", element.value);
      if (tag === "input" && element.getAttribute("type") === "checkbox") {
        note(element, "data-status", element.checked ? "checked" : "not-checked");
      }
    }
  };

  const ROLES = ["button", "tab", "link", "checkbox", "menuitem", "menuitemcheckbox", "menuitemradio", "radio"];
  const TAGS = ["input", "textarea", "select", "button", "a", "iframe", "video", "object", "embed", "details"];

  const hasClickAction = (element) =>
    ask(element, "getAttribute", "jsaction").split(";").some((rule) => {
      const parts = rule.trim().split(":");
      if (parts.length > 2) return false;
      const event = parts.length === 2 ? parts[0] : "click";
      const [namespace, action = "_"] = parts[parts.length - 1].trim().split(".");
      return event === "click" && namespace !== "none" && action !== "_";
    });

  const isImageMap = (element) => {
    const name = element.getAttribute("usemap")?.replace(/^#/, "").replace('"', '\\"');
    return Boolean(name) && document.querySelector(`map[name="${name}"]`) && element.getClientRects().length > 0;
  };

  const isClickable = (element) => {
    const tag = tagOf(element);
    if (__webrl.hasOnclick(element) || window.getComputedStyle(element).cursor === "pointer") return true;
    if (tag === "img" && isImageMap(element)) return true;
    const role = ask(element, "getAttribute", "role");
    if (role != null && ROLES.includes(role.toLowerCase())) return true;
    const editable = ask(element, "getAttribute", "contenteditable");
    if (editable != null && ["", "contenteditable", "true"].includes(editable.toLowerCase())) return true;
    if (ask(element, "hasAttribute", "jsaction") && hasClickAction(element)) return true;
    if (TAGS.includes(tag)) return true;
    if (tag === "label" && element.control != null && !element.control.disabled) return true;
    if (tag === "img" && ["zoom-in", "zoom-out"].includes(element.style.cursor)) return true;
    if (ask(element, "getAttribute", "class")?.toLowerCase().includes("button")) return true;
    return parseInt(ask(element, "getAttribute", "tabindex") || "-1") >= 0;
  };

  const clipped = (box) => {
    const left = Math.max(0, box.left), top = Math.max(0, box.top);
    return { width: Math.min(width, box.right) - left, height: Math.min(height, box.bottom) - top };
  };

  // Only boxes whose centre shows the element (or something inside it) count: covered elements have no area.
  const visibleArea = (element) => {
    let area = 0;
    for (const box of ask(element, "getClientRects")) {
      const top = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
      if (!top || !ask(element, "contains", top)) continue;
      const size = clipped(box);
      area += size.width * size.height;
    }
    return area;
  };

  const findClickable = () => {
    const candidates = all.filter((element) => isClickable(element) && visibleArea(element) >= 1);
    const outer = new Set();
    for (const element of candidates) {
      for (let up = ask(element, "parentElement"); up && !outer.has(up); up = ask(up, "parentElement")) outer.add(up);
    }
    return candidates.filter((element) => !outer.has(element));
  };

  const noteLabels = (clickable) => {
    let label = 0;
    for (const element of clickable) {
      const [box] = ask(element, "getClientRects");
      const size = box ? clipped(box) : { width: 0, height: 0 };
      if (size.width <= 0 && size.height <= 0) continue;
      note(element, "data-label-id", String(label));
      memory.labels.set(String(label), element);
      label += 1;
    }
  };

  // The copy lives in an inert document: nothing is fetched, no script or custom element runs. There,
  // `noscript` would be escaped on output, unlike in the page, so its text goes through a placeholder.
  // Nor is it deeper than the simplifier's parser reads: what is deeper follows the ancestor that is not.
  const MAX_DEPTH = 200;
  const annotatedCopy = () => {
    const copy = document.implementation.createHTMLDocument("").importNode(root, true);
    const raw = [];
    const depths = new Map();
    [copy, ...copy.querySelectorAll("*")].forEach((twin, index, twins) => {
      const depth = (depths.get(ask(twin, "parentElement")) ?? 0) + 1;
      depths.set(twin, Math.min(depth, MAX_DEPTH));
      if (depth > MAX_DEPTH) ask(twins[index - 1], "after", twin);
      for (const [name, value] of memory.notes.get(all[index]) ?? []) {
        if (value === null) ask(twin, "removeAttribute", name);
        else ask(twin, "setAttribute", name, value);
      }
      if (tagOf(twin) === "noscript") {
        raw.push(all[index].textContent);
        twin.textContent = `\uE000${raw.length - 1}\uE001`;
      }
    });
    return copy.outerHTML.replace(/\uE000(\d+)\uE001/g, (_, index) => raw[index]);
  };

  __webrl.learn(__webrl.allElements());
  forgetClickable();
  for (const element of all) {
    noteBox(element);
    noteText(element);
    noteState(element);
  }
  const clickable = findClickable();
  memory.clickable.push(...clickable);
  noteLabels(clickable);
  return { html: annotatedCopy(), width: window.innerWidth, height: window.innerHeight,
    labels: [...memory.labels].map(([label, element]) => [label, ask(element, "getAttribute", "bid")]),
    lacks: {
      "the pages in {} frames": document.querySelectorAll("frame").length,
      "what is drawn on {} canvases": all.filter(__webrl.isDrawing).length,
      "{} shadow trees": all.filter((each) => each.shadowRoot?.childElementCount && each.checkVisibility()).length,
    } };
}
