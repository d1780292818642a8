import { type Html, html } from '../html'
import { copyButton } from '../parts'
import type { Command } from './Commands'

/** Text of a command, and data from which the script makes it for other values. */
export type Tab = Command & { templates?: Readonly<Record<string, string>> | undefined }

/**
 * Commands as tabs. Without scripts there is no list of tabs, and all commands are visible, one below
 * the other.
 */
export function commandTabs(tabs: readonly Tab[]): Html {
  const idOf = ({ name }: Tab) => name.replace(/[^A-Za-z0-9]+/g, '').toLowerCase()
  return html`<div class="tabs">
<div class="tablist" role="tablist" aria-label="Tools">${tabs.map(
    (tab, at) =>
      html`<button type="button" role="tab" id="tab-${idOf(tab)}" aria-controls="code-${idOf(tab)}" aria-selected="${at === 0 ? 'true' : 'false'}" tabindex="${at === 0 ? '0' : '-1'}">${tab.name}</button>`,
  )}</div>
${tabs.map((tab) => {
  const { name, note, text, templates } = tab
  const data =
    templates === undefined ? undefined : html` data-templates="${JSON.stringify(templates)}"`
  return html`<div class="tabpanel" role="tabpanel" id="code-${idOf(tab)}" aria-labelledby="tab-${idOf(tab)}">
<p class="note"><strong class="tabname">${name}</strong> ${note}</p>
<div class="command"><pre tabindex="0" aria-label="${name}"><code${data}>${text}</code></pre>${copyButton(`Copy ${name}`)}</div>
</div>`
})}
</div>`
}
