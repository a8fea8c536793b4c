// Of a field that keeps a form from being sent, and cannot show its words: a person would find it in the same log.
function() {
  const name = this.labels?.[0]?.textContent.trim() || this.ariaLabel || this.name || this.id || this.localName;
  return `the form was not sent: its field '${name}', which is not shown, says '${this.validationMessage}'`;
}
