import type { Config, NetworkConfig } from '../../config/Config'
import { scrub } from '../../log'
import { hourMs } from '../../protocol/Time'
import type { Details, RelayerStatus } from '../../settlement/state/availability'
import { isLocal } from '../chains'
import { type Html, html } from '../html'
import { badge } from '../parts'
import { purposeOf } from './names'
import { salesText } from './overview'
import { amount, coinAndUsd, duration, facts, gwei, percent, short, table, time } from './parts'
import type { AdminContext } from './sources'

/** Networks with their relayers, fees, budgets, and open transactions. */
export async function networksPage({ config, ...sources }: AdminContext): Promise<Html> {
  const pauses = await sources.ledger.pauses()
  const pending = await sources.pending()
  const now = sources.now()
  return html`<h1>Networks</h1>
${sources.networks().length === 0 && html`<p class="empty">No network is configured, so nothing can be paid. <strong>First step:</strong> write <code>networks = ["base"]</code> under <code>[service]</code> in the file, and restart.</p>`}
${sources.networks().map((details) => {
  const network = config.networks.find(({ id }) => id === details.network)
  const isPaused = pauses.some(({ kind, name }) => kind === 'network' && name === details.network)
  return network === undefined ? false : section(network, details, isPaused)
})}
<h2 id="pending">Pending payments</h2>
${table(
  'Pending payments',
  pending.oldest,
  [
    ['Age', ({ createdAt }) => duration(now - createdAt)],
    ['For', purposeOf],
    ['Amount', (payment) => amountOf(config, payment), 'number'],
    [
      'State',
      ({ state }) =>
        state === 'reverted'
          ? badge('bad', 'failed, may be sent again')
          : badge('fair', 'in no block yet'),
    ],
    ['Payment', ({ id }) => html`<a href="/admin/payments/${id}">${short(id)}</a>`],
    ['Transaction', ({ transaction }) => short(transaction)],
  ],
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
  const { ready, reason, remedy, cost } = details
  const micro = (Number(cost.gas * cost.priceWei) / 1e18) * ethPriceUsd
  return html`<section>
<h2>${name} ${ready ? badge('good', 'ready') : badge('bad', 'paused')}${isPaused && html` ${badge('fair', 'sales paused')}`}</h2>
${!ready && html`<p class="fault">${scrub([reason ?? 'unknown', remedy].filter(Boolean).join('; '))}</p>`}
<p><a class="button second" href="/admin/actions/${isPaused ? 'resume' : 'pause'}?subject=network:${id}">${isPaused ? 'Resume' : 'Pause'} sales on ${name}</a></p>
${facts([
  ['Network', `${id}, paid in ${asset.symbol}`],
  ['Newest block', blockText(network, details)],
  ['Gas of a sale', cost.priceWei === 0n ? 'nothing now' : gasText(micro)],
  ['Base fee and tip', `${gwei(details.baseFeeWei)} and ${gwei(details.tipWei)}`],
  ['Waiting for a relayer', details.waiting === 0 ? 'nothing' : details.waiting],
  [
    'News of blocks',
    details.newHeads
      ? 'a node announces each block (ws_url)'
      : 'the nodes are asked again and again; ws_url in the file is faster',
  ],
  ['Nodes', details.hosts.join(', ')],
  ['Channels', network.channels && html`<a href="/admin/channels">See the channels</a>`],
])}
<p class="quiet">A relayer is an account of this service that sends payments and pays their gas.</p>
${relayers(network, details)}
${budgets(network, details)}
</section>`
}

/** The newest block of a healthy network is younger than this, ms. */
const goodAgeMs = 30_000
const fairAgeMs = 5 * 60_000

function blockText(network: NetworkConfig, { block, blockAgeMs }: Details): Html {
  if (blockAgeMs === undefined) return html`unknown`
  const text = `${block.toLocaleString('en')}, ${duration(blockAgeMs)} old`
  // A chain on this machine, as in the demo, makes blocks only when something is sent.
  if (isLocal(network)) return html`${text}`
  if (blockAgeMs < goodAgeMs) return html`${text} ${badge('good', 'current')}`
  return blockAgeMs < fairAgeMs
    ? html`${text} ${badge('fair', 'late')}`
    : html`${text} ${badge('bad', 'too old: check the nodes')}`
}

/** Digits below a hundredth of a cent are of no use. */
function gasText(usd: number): string {
  return usd < 0.0001 ? 'less than $0.0001' : `about $${usd.toPrecision(2)}`
}

/** Gas that was spent of a budget; a tiny amount as a bound. */
function spentText(wei: bigint, network: NetworkConfig): string {
  return wei > 0n && wei < 10n ** 12n ? 'under 0.000001 ETH' : coinAndUsd(wei, network)
}

const productWords: Readonly<Record<Details['gas'][number]['product'], string>> = {
  gateway: 'Sales of this service',
  facilitator: 'Payments for other servers (facilitator)',
  desk: 'Stock orders',
  sponsor: 'Grants to buyers',
  channels: 'Deposits and refunds of channels',
}

function relayers(network: NetworkConfig, { relayers: all, cost }: Details): Html {
  const each = cost.gas * cost.priceWei
  const left = ({ balanceWei }: RelayerStatus) =>
    balanceWei === undefined || each === 0n ? 'unknown' : salesText(Number(balanceWei / each))
  return table(
    `Relayers on ${network.name}`,
    all,
    [
      ['Relayer', ({ relayer }) => html`<code class="hash">${relayer}</code>`],
      [
        'State',
        ({ ready, reason }) =>
          ready
            ? badge('good', 'ready')
            : html`${badge('bad', 'paused')} ${scrub(reason ?? 'unknown')}`,
      ],
      [
        'Balance for gas',
        ({ balanceWei }) =>
          balanceWei === undefined ? 'unknown' : coinAndUsd(balanceWei, network),
        'number',
      ],
      ['Enough for', left, 'number'],
      ['Next nonce', ({ nonce }) => nonce ?? 'unknown', 'number'],
      ['In progress', ({ inFlight }) => inFlight, 'number'],
    ],
    'There is no relayer.',
  )
}

function budgets(network: NetworkConfig, { gas }: Details): Html {
  const budgetText = (wei: bigint) => (wei === 0n ? 'none' : coinAndUsd(wei, network))
  return table(`Gas of today on ${network.name}`, gas, [
    ['Gas of today for', ({ product }) => productWords[product]],
    ['Spent', ({ spentWei }) => spentText(spentWei, network), 'number'],
    ['Budget a day', ({ budgetWei }) => budgetText(budgetWei), 'number'],
    ['Part', (each) => percent(Number(each.spentWei), Number(each.budgetWei)), 'number'],
  ])
}

/** The settlements of the facilitator for other servers. */
export async function facilitatorPage({ config, ...sources }: AdminContext): Promise<Html> {
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
  const networkOf = (id: string) => config.networks.find((each) => each.id === id)
  const settledText = ({ network, asset, atomic }: (typeof rows)[number]) => {
    const known = networkOf(network)?.asset
    const isOwn = known?.address.toLowerCase() === asset.toLowerCase()
    return known && isOwn ? amount(atomic, known) : `${atomic} ${asset}`
  }
  const { payTo } = config.facilitator
  const keys = config.facilitator.apiKeyHashes.length
  const open = typeof payTo === 'string' ? payTo : `${payTo.length} addresses`
  return html`<h1>Facilitator</h1>
<p>The facilitator sends payments that other x402 servers have received, so that they need no chain, key or gas of their own. Such a server names the address below as its facilitator. <strong>Nothing to do here:</strong> it runs by itself.</p>
${facts([
  ['Address', html`<code>${config.service.facilitatorUrl}</code>`],
  [
    'Settles for',
    open === 'own'
      ? 'payments of any server to the payout addresses in your file'
      : open === 'any'
        ? 'payments to any payee'
        : `payments to ${open}`,
  ],
  ['API keys', keys === 0 ? 'none: no call needs a key' : `${keys}: each call needs one`],
])}
<p class="quiet">If you want to allow other payees, write <code>pay_to</code> under <code>[facilitator]</code> in the file. If calls should need keys, choose one and write its sha256 into <code>api_keys</code> there. Then <a href="/admin/configuration">reload the file</a>. Its gas has a budget of its own on each <a href="/admin/networks">network</a>.</p>
<h2>Settled in the last 7 days, by payee</h2>
<p class="quiet">From ${time(from)} on.</p>
${table(
  'Settled by payee',
  rows.slice(0, 200),
  [
    ['Payee', ({ payee }) => html`<code class="hash">${payee}</code>`],
    ['Network', ({ network }) => networkOf(network)?.name ?? network],
    ['Payments', ({ payments }) => payments.toLocaleString('en'), 'number'],
    ['Amount', settledText, 'number'],
  ],
  'The facilitator has settled nothing in this time.',
)}
${rows.length > 200 && html`<p class="quiet">${rows.length - 200} more payees have fewer payments.</p>`}`
}
