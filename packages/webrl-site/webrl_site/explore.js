// What `webrl init-site` reads off a page beside its text: links, forms, and which heading is its own (explore.py).
() => {
  const short = (words) => [...(words ?? '').replace(/\s+/g, ' ').trim()].slice(0, 80).join('');
  const text = (e) => short(e?.innerText);
  const plain = (e) => short(e?.textContent);
  const all = (() => {
    try {
      return __webrl.allElements(); // in shadow roots too
    } catch {
      return [...document.querySelectorAll('*')];
    }
  })();
  // A field called `action` or `elements` hides the form's own.
  const own = (form, name) => Object.getOwnPropertyDescriptor(HTMLFormElement.prototype, name).get.call(form);
  const label = (e) => {
    const copy = e.labels?.[0]?.cloneNode(true);
    copy?.querySelectorAll('input, select, textarea').forEach((part) => part.remove());
    return plain(copy);
  };
  const name = (e) => short(label(e) || e.placeholder || e.getAttribute('aria-label') || e.name || e.id);
  const isField = (e) =>
    e.matches('input:not([type=hidden]):not([type=submit]):not([type=button]), select, textarea');
  const isText = (e) => e.matches('input:not([type]), input[type=text], input[type=email], input[type=tel]');
  const words = (e) => e instanceof HTMLInputElement ? e.value : text(e) || text(e.getRootNode().host);
  const enters = (said) => /log.?[io]n|sign.?in|continue|submit|^ok$/i.test(said);
  const describe = (action, fields, buttons) => {
    const passwords = fields.filter((e) => e.type === 'password' && e.checkVisibility());
    // Two are a registration, one that is new is no log-in either.
    const password = passwords.length === 1 && passwords[0].autocomplete !== 'new-password' ? passwords[0] : null;
    const user = fields.slice(0, fields.indexOf(password)).filter((e) => isText(e) && e.checkVisibility()).at(-1);
    return {
      action, fields: fields.map(name), password: password && name(password), user: user ? name(user) : null,
      submit: buttons.find(enters) ?? buttons[0] ?? null,
    };
  };
  const forms = all.filter((e) => e instanceof HTMLFormElement).map((form) => describe(
    own(form, 'action'), [...own(form, 'elements')].filter(isField),
    all.filter((e) => e.form === form && e.matches('button:not([type=button]), input[type=submit]')).map(words)
      .filter(Boolean)));
  // A program may ask for a password without a form, or in a component of its own.
  const loose = all.filter((e) => isField(e) && !e.form && e.checkVisibility());
  const last = all.indexOf(loose.filter((e) => e.type === 'password').at(-1));
  const after = all.slice(last + 1).filter((e) => e.matches('button, [role=button]') && e.checkVisibility());
  if (last >= 0) forms.push(describe(location.href, loose, after.map(words).filter(enters)));
  // A name of the site beside the page's own (docsify has it in every sidebar) is not the page's heading.
  const headings = all.filter((e) => e.matches('h1') && text(e) && !e.closest(
    'aside, nav, [role=complementary], [role=navigation]'));
  const asks = (a) => /confirm\(/.test(a.getAttribute('onclick')) ||
    a.getAttributeNames().some((key) => /confirm|^data-(turbo-)?method$|^hx-(post|put|patch|delete)$/.test(key));
  return {
    type: document.contentType,
    title: document.title.trim(),
    heading: headings.length === 1 ? headings[0].getAttribute('bid') : '',
    links: all.filter((e) => (e instanceof HTMLAnchorElement || e instanceof HTMLAreaElement) && e.href).map((a) => [
      a.href, [text(a) || plain(a), a.getAttribute('aria-label'), a.title].filter(Boolean).join('\n'),
      a.getAttribute('bid') ?? '', asks(a)]),
    forms,
  };
}
