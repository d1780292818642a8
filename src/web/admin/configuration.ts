import type { Merchant, Route } from '../../config/Config'
import * as Entitlements from '../../paywall/entitlement/Entitlements'
import { type Html, html } from '../html'
import { networksOf } from '../parts'
import { facts, table } from './parts'
import type { AdminContext } from './sources'

/**
 * The configuration in force. Nothing that may come from the environment is shown by its value:
 * headers and secrets by their names, upstreams and nodes by their hosts.
 */
export function configurationPage({ config, actions, file }: AdminContext): Html {
  const { service, networks, merchants, facilitator, stock, webhooks, alerts, hash } = config
  const routeOf = (route: Route, merchant: Merchant) => {
    const given = Entitlements.linesOf(route, networksOf(networks, merchant))
    return html`<code>${route.path}</code>${given.map(([kind, text]) => html`<br><span class="quiet">${kind}: ${text}</span>`)}`
  }
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
  ...settings({ ...service, listen: `${service.listen.hostname}:${service.listen.port}` }),
  ['Hash of the file', html`<code class="hash">${hash}</code>`],
])}
<h2>Secrets</h2>
<p>These come from the environment or from the data directory, and are never shown: <code>RELAYER_KEYS</code>, <code>DESK_KEY</code>, <code>REFUND_KEY</code>, <code>RECEIVER_AUTHORIZER_KEY</code>, <code>CHALLENGE_SECRETS</code>, <code>RECEIPT_KEY</code>, <code>ADMIN_TOKEN</code>.</p>
<h2>Networks</h2>
${networks.map(
  (network) => html`<details><summary>${network.name} (${network.id})</summary>
${facts([
  ...settings(network, ['rpcUrls', 'wsUrl', 'name', 'id']),
  ['rpc_urls', hosts(network.rpcUrls)],
  ['ws_url', network.wsUrl === '' ? 'none' : hosts([network.wsUrl])],
])}</details>`,
)}
<h2>Merchants</h2>
${table(
  'Merchants as configured',
  merchants,
  [
    ['Merchant', ({ slug }) => slug],
    ['Upstream', ({ builtin, upstream }) => builtin ?? upstream?.origin ?? 'by route'],
    ['Headers', ({ headers }) => Object.keys(headers).join(', ') || '-'],
    ['Payout', ({ payout }) => html`<code class="hash">${payout}</code>`],
    ['Networks', (merchant) => lines(merchant.networks.map((id) => html`${id}`))],
    ['Routes', (merchant) => lines(merchant.routes.map((route) => routeOf(route, merchant)))],
  ],
  html`No merchant is in the file. <strong>First step:</strong> add a <code>[[merchants]]</code> block with a route, then reload it.`,
)}
<h2>Facilitator</h2>
${facts([
  ...settings(facilitator, ['apiKeyHashes']),
  ['api_key_hashes', `${facilitator.apiKeyHashes.length}`],
])}
${
  stock !== undefined &&
  html`<h2>Stock</h2>
${facts([
  ...settings(stock, ['tokens', 'issuerUrl', 'explorerUrl']),
  ['tokens', stock.tokens.map(({ symbol }) => symbol).join(', ')],
])}`
}
<h2>Webhooks</h2>
${table(
  'Webhooks',
  webhooks,
  [
    ['Endpoint', ({ id }) => html`<code>${id}</code>`],
    ['Origin', ({ url }) => url.origin],
    ['Events', ({ events }) => events.join(', ')],
  ],
  'No webhooks are configured.',
)}
${
  alerts.length > 0 &&
  html`<h2>Alerts</h2>
${table('Alerts', alerts, [
  ['Kind', ({ kind }) => kind],
  ['About', ({ about }) => about.join(', ') || 'everything'],
])}`
}`
}

function lines(parts: readonly Html[]): Html {
  return html`${parts.map((part, index) => html`${index > 0 && html`<br>`}${part}`)}`
}

/** The settings of a block under the names of the file, such as `base_url`, except for some. */
function settings(block: object, except: readonly string[] = []) {
  return Object.entries(block)
    .filter(([name]) => !except.includes(name))
    .map(([name, value]) => {
      const written = name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
      return [written, text(value)] as const
    })
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
