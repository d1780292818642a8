import type { Config, NetworkConfig } from '../../config/Config'
import type { Details, RelayerStatus } from '../../settlement/availability'
import { type Html, html } from '../html'
import { purposeOf } from './names'
import { salesText } from './overview'
import {
  amount,
  badge,
  type Cell,
  coin,
  duration,
  facts,
  gwei,
  percent,
  scrubbed,
  short,
  table,
  time,
} from './parts'
import type { Sources } from './sources'

/** Networks with their relayers, fees and budgets, and what waits for a block. */
export async function networksPage(config: Config, sources: Sources): Promise<Html> {
  const pauses = await sources.ledger.pauses()
  const pending = await sources.pending()
  const now = sources.now()
  return html`<h1>Networks</h1>
${sources.networks().map((details) => {
  const network = config.networks.find(({ id }) => id === details.network)
  const isPaused = pauses.some(({ kind, name }) => kind === 'network' && name === details.network)
  return network === undefined ? false : section(network, details, isPaused)
})}
<h2>Pending payments</h2>
${table(
  'Pending payments',
  ['Age', 'For', { title: 'Amount', isNumber: true }, 'State', 'Payment', 'Transaction'],
  pending.oldest.map((payment) => [
    duration(now - payment.createdAt),
    purposeOf(payment),
    amountOf(config, payment),
    payment.state,
    html`<a href="/admin/payments/${payment.id}">${short(payment.id)}</a>`,
    short(payment.transaction),
  ]),
  'No payment waits for a block.',
)}
${pending.count > pending.oldest.length && html`<p><a href="/admin/payments?state=pending">All ${pending.count}</a></p>`}`
}

function amountOf({ networks }: Config, payment: { network: string; amountAtomic: bigint }) {
  const asset = networks.find(({ id }) => id === payment.network)?.asset
  return asset === undefined ? String(payment.amountAtomic) : amount(payment.amountAtomic, asset)
}

function section(network: NetworkConfig, details: Details, isPaused: boolean): Html {
  const { id, name, asset, ethPriceUsd } = network
  const { ready, reason, remedy, cost, blockAgeMs } = details
  const micro = (Number(cost.gas * cost.priceWei) / 1e18) * ethPriceUsd
  return html`<section>
<h2>${name} ${ready ? badge('good', 'ready') : badge('bad', 'paused')}${isPaused && html` ${badge('fair', 'sales paused')}`}</h2>
${!ready && html`<p class="fault">${scrubbed([reason ?? 'unknown', remedy].filter(Boolean).join('; '))}</p>`}
${facts([
  ['Network', `${id}, ${asset.symbol}`],
  ['Newest block', blockText(details)],
  ['Behind our clock', blockAgeMs === undefined ? 'unknown' : duration(blockAgeMs)],
  ['Base fee and tip', `${gwei(details.baseFeeWei)} and ${gwei(details.tipWei)}`],
  ['Gas of a sale', cost.priceWei === 0n ? 'nothing now' : `about $${micro.toPrecision(2)}`],
  ['Waiting for a relayer', details.waiting],
  ['New blocks', details.newHeads ? 'announced by a WebSocket' : 'polled'],
  ['Nodes', details.hosts.join(', ')],
])}
${relayers(name, details)}
${budgets(name, details)}
<p><a class="button second" href="/admin/actions/${isPaused ? 'resume' : 'pause'}?subject=network:${id}">${isPaused ? 'Resume' : 'Pause'} sales on ${name}</a></p>
</section>`
}

function blockText({ block, blockAgeMs }: Details): string {
  return blockAgeMs === undefined ? 'unknown' : block.toLocaleString('en')
}

function relayers(name: string, { relayers: all, cost }: Details): Html {
  const each = cost.gas * cost.priceWei
  const left = ({ balanceWei }: RelayerStatus) =>
    balanceWei === undefined || each === 0n ? 'unknown' : salesText(Number(balanceWei / each))
  return table(
    `Relayers on ${name}`,
    [
      'Relayer',
      'State',
      { title: 'Balance', isNumber: true },
      { title: 'Pays for', isNumber: true },
      { title: 'Next nonce', isNumber: true },
      { title: 'In progress', isNumber: true },
    ],
    all.map((relayer): Cell[] => [
      html`<code class="hash">${relayer.relayer}</code>`,
      relayer.ready
        ? badge('good', 'ready')
        : html`${badge('bad', 'paused')} ${scrubbed(relayer.reason ?? 'unknown')}`,
      relayer.balanceWei === undefined ? 'unknown' : coin(relayer.balanceWei),
      left(relayer),
      relayer.nonce ?? 'unknown',
      relayer.inFlight,
    ]),
    'There is no relayer.',
  )
}

function budgets(name: string, { gas }: Details): Html {
  return table(
    `Gas of today on ${name}`,
    [
      'Gas of today, native coin',
      { title: 'Spent', isNumber: true },
      { title: 'Budget', isNumber: true },
      { title: 'Part', isNumber: true },
    ],
    gas.map(({ product, spentWei, budgetWei }) => [
      product,
      coin(spentWei),
      coin(budgetWei),
      percent(Number(spentWei), Number(budgetWei)),
    ]),
    '',
  )
}

/** What the facilitator settled for other servers. */
export async function facilitatorPage(config: Config, sources: Sources): Promise<Html> {
  const hourMs = 3_600_000
  const to = sources.now()
  const from = to - (to % hourMs) - (24 * 7 - 1) * hourMs
  const sums = new Map<
    string,
    { network: string; asset: string; payee: string; payments: number; atomic: bigint }
  >()
  for (let at = from; at < to; at += hourMs) {
    const lines = await sources.ledger.payees({ from: at, to: Math.min(to, at + hourMs) })
    for (const { network, asset, payee, payments, amountAtomic } of lines) {
      const key = `${network} ${asset} ${payee}`.toLowerCase()
      const { payments: before = 0, atomic = 0n } = sums.get(key) ?? {}
      const sum = { payments: before + payments, atomic: atomic + amountAtomic }
      sums.set(key, { network, asset, payee, ...sum })
    }
    await new Promise((resolve) => setImmediate(resolve))
  }
  const rows = [...sums.values()].sort((left, right) => right.payments - left.payments)
  const { payTo } = config.facilitator
  const open = typeof payTo === 'string' ? payTo : `${payTo.length} addresses`
  return html`<h1>Facilitator</h1>
${facts([
  ['Address', html`<code>${config.service.facilitatorUrl}</code>`],
  [
    'Settles for',
    open === 'own' ? 'the payouts of this service' : open === 'any' ? 'any payee' : open,
  ],
  ['API keys', config.facilitator.apiKeyHashes.length],
])}
<h2>Settled in the last 7 days, by payee</h2>
<p class="quiet">From ${time(from)} on. The gas is that of the product facilitator, on the page of the <a href="/admin/networks">networks</a>.</p>
${table(
  'Settled by payee',
  ['Payee', 'Network', { title: 'Payments', isNumber: true }, { title: 'Amount', isNumber: true }],
  rows.slice(0, 200).map(({ network, asset, payee, payments, atomic }) => {
    const known = config.networks.find(({ id }) => id === network)
    const isOwn = known?.asset.address.toLowerCase() === asset.toLowerCase()
    return [
      html`<code>${payee}</code>`,
      known?.name ?? network,
      payments.toLocaleString('en'),
      known !== undefined && isOwn ? amount(atomic, known.asset) : `${atomic} ${asset}`,
    ]
  }),
  'The facilitator has settled nothing in this time.',
)}
${rows.length > 200 && html`<p class="quiet">${rows.length - 200} more payees have fewer payments.</p>`}`
}
