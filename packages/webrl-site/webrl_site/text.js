// The texts of a page, as `text` checks look for them (checks.py): `innerText` leaves out what stands in shadow roots.
(() => {
  const texts = [document.body?.innerText ?? ''];
  const look = (root) => root.querySelectorAll('*').forEach((element) => {
    if (!element.shadowRoot || !element.checkVisibility()) return;
    texts.push(...[...element.shadowRoot.children].map((child) => (child.checkVisibility() && child.innerText) || ''));
    look(element.shadowRoot);
  });
  look(document);
  return texts.join('\n');
})()
