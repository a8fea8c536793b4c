// Gives the document as it is now, as one HTML text: what users typed, ticked and chose becomes attributes,
// and scripts are left out. The page itself is not altered.
() => {
  const root = document.documentElement;
  const copy = document.implementation.createHTMLDocument("").importNode(root, true);
  const twins = [copy, ...copy.querySelectorAll("*")];
  [...document.querySelectorAll("*")].forEach((element, index) => {
    const twin = twins[index];
    const tag = (element.tagName || "").toLowerCase();
    if (tag === "input" && !["file", "image"].includes(element.type)) {
      twin.setAttribute("value", element.value);
      twin.toggleAttribute("checked", element.checked);
    } else if (tag === "textarea") {
      twin.textContent = element.value;
    } else if (tag === "option") {
      twin.toggleAttribute("selected", element.selected);
    } else if (tag === "details" || tag === "dialog") {
      twin.toggleAttribute("open", element.open);
    }
  });
  for (const script of copy.querySelectorAll("script, noscript, meta[http-equiv=refresh i]")) script.remove();
  return "<!DOCTYPE html>" + copy.outerHTML;
}
