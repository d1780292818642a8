import type { Config, Merchant } from '../../config/Config'
import { type Html, html } from '../html'
import { type Cell, facts, table } from './parts'
import type { Sources } from './sources'

/**
 * The configuration in force. Nothing that may come from the environment is shown by its value:
 * headers and secrets by their names, upstreams and nodes by their hosts.
 */
export function configurationPage(config: Config, { actions, file }: Sources): Html {
  const { service, networks, merchants, facilitator, stock, webhooks, hash } = config
  return html`<h1>Configuration</h1>
${
  file === undefined
    ? html`<p>This process was started without a file that you can change, like the demo.</p>`
    : html`<p>The file is <code class="hash">${file}</code>. <strong>To change something, edit it, then reload it here.</strong> A file with faults changes nothing. What needs a restart is named.</p>`
}
<p class="quiet">Below is what is in force, under the names of the file, with the defaults of what it does not name.</p>
<div class="row">
${actions.reload !== undefined && html`<a class="button" href="/admin/actions/reload">Reload the file</a>`}
${actions.backUp !== undefined && html`<a class="button second" href="/admin/actions/backup">Make a backup</a>`}
</div>
<h2>Service</h2>
${facts([
  ...Object.entries({
    ...service,
    listen: `${service.listen.hostname}:${service.listen.port}`,
  }).map(([name, value]) => [snake(name), text(value)] as const),
  ['Hash of the file', html`<code class="hash">${hash}</code>`],
])}
<h2>Secrets</h2>
<p>These come from the environment or from the data directory, and are never shown: ${secretNames.map((name, index) => html`${index > 0 && ', '}<code>${name}</code>`)}.</p>
<h2>Networks</h2>
${networks.map(
  (network) => html`<details><summary>${network.name} (${network.id})</summary>
${facts([
  ...Object.entries(network)
    .filter(([name]) => !['rpcUrls', 'wsUrl', 'name', 'id'].includes(name))
    .map(([name, value]) => [snake(name), text(value)] as const),
  ['rpc_urls', hosts(network.rpcUrls)],
  ['ws_url', network.wsUrl === '' ? 'none' : hosts([network.wsUrl])],
])}</details>`,
)}
<h2>Merchants</h2>
${table(
  'Merchants as configured',
  ['Merchant', 'Upstream', 'Headers', 'Payout', 'Networks', 'Routes'],
  merchants.map(merchantRow),
  html`No merchant is in the file. <strong>First step:</strong> add a <code>[[merchants]]</code> block with a route, then reload it.`,
)}
<h2>Facilitator</h2>
${facts([
  ...Object.entries(facilitator)
    .filter(([name]) => name !== 'apiKeyHashes')
    .map(([name, value]) => [snake(name), text(value)] as const),
  ['api_key_hashes', `${facilitator.apiKeyHashes.length}`],
])}
${
  stock !== undefined &&
  html`<h2>Stock</h2>
${facts([
  ...Object.entries(stock)
    .filter(([name]) => !['tokens', 'issuerUrl', 'explorerUrl'].includes(name))
    .map(([name, value]) => [snake(name), text(value)] as const),
  ['tokens', stock.tokens.map(({ symbol }) => symbol).join(', ')],
])}`
}
<h2>Webhooks</h2>
${table(
  'Webhooks',
  ['Endpoint', 'Origin', 'Events'],
  webhooks.map(({ id, url, events }) => [html`<code>${id}</code>`, url.origin, events.join(', ')]),
  'No webhooks are configured.',
)}`
}

const secretNames = [
  'RELAYER_KEYS',
  'DESK_KEY',
  'CHALLENGE_SECRETS',
  'RECEIPT_KEY',
  'ADMIN_TOKEN',
] as const

function merchantRow(merchant: Merchant): readonly Cell[] {
  const { slug, upstream, builtin, headers, payout, networks, routes } = merchant
  return [
    slug,
    builtin ?? upstream?.origin ?? 'by route',
    Object.keys(headers).join(', ') || '-',
    html`<code class="hash">${payout}</code>`,
    lines(networks.map((id) => html`${id}`)),
    lines(routes.map(({ path }) => html`<code>${path}</code>`)),
  ]
}

function lines(parts: readonly Html[]): Html {
  return html`${parts.map((part, index) => html`${index > 0 && html`<br>`}${part}`)}`
}

/** `baseUrl` as the file writes it: `base_url`. */
function snake(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
}

function text(setting: unknown): string {
  if (setting === undefined || setting === null || setting === '') return 'not set'
  if (typeof setting !== 'object') return String(setting)
  return JSON.stringify(setting, (_, each) => (typeof each === 'bigint' ? String(each) : each), 1)
}

/** A URL of a node may have a key in its path. */
function hosts(urls: readonly string[]): string {
  return urls.map((url) => URL.parse(url)?.host ?? 'unknown').join(', ')
}
