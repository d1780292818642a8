import type { Hex } from 'viem'
import type { Channel } from '../../../db/Channel'
import { scrub } from '../../log'
import { type Html, html } from '../html'
import { badge } from '../parts'
import { type Names, readNames } from './names'
import { type Column, duration, facts, figure, short, table, time } from './parts'
import type { AdminContext } from './sources'

const pageLength = 50
/** Withdrawals that are shown first; the others are in the list. */
export const withdrawalsMax = 100

/** Payment channels: withdrawals, what is unclaimed on each network, then all of them. */
export async function channelsPage(context: AdminContext, params: URLSearchParams): Promise<Html> {
  const { channels, config } = context
  const names = await readNames(context)
  const at = context.now()
  const before = /^0x[0-9a-f]{64}$/.exec(params.get('before') ?? '')?.[0] as Hex | undefined
  const [totals, withdrawals, found] = await Promise.all([
    channels.totals(),
    channels.withdrawals(withdrawalsMax),
    channels.list({ before, limit: pageLength + 1 }),
  ])
  const shown = found.slice(0, pageLength)
  const coinOf = (network: string, atomic: bigint) => {
    const asset = config.networks.find(({ id }) => id === network)?.asset.address
    return names.amount(atomic, { network, asset: asset ?? '' })
  }
  return html`<h1>Channels</h1>
<p>A buyer deposits once and signs a voucher with each request. <strong>Nothing to do here:</strong> the service claims the vouchers by itself, while its relayers have gas.</p>
${
  withdrawals.length > 0 &&
  html`<h2 id="withdrawals">Withdrawals</h2>
${list('Withdrawals', withdrawals, { names, at })}
<p class="quiet">No further voucher of these channels is taken. What is unclaimed at the deadline is lost.</p>`
}
<h2>By network</h2>
${table(
  'Channels by network',
  totals,
  [
    ['Network', ({ network }) => names.network(network)],
    ['Open channels', ({ channels }) => figure(channels), 'number'],
    ['Sold, not on chain yet', (each) => coinOf(each.network, each.unclaimedAtomic), 'number'],
    ['Withdrawals', ({ withdrawals }) => figure(withdrawals), 'number'],
    ['Next claim', ({ network }) => nextText(context, network), 'number'],
    [
      'Claim',
      ({ network }) =>
        html`<a href="/admin/actions/claim?subject=network:${network}">Claim now<span class="hidden"> on ${names.network(network)}</span></a>`,
    ],
  ],
  'No channel is open.',
)}
<h2>All channels</h2>
${list('Channels', shown, { names, at })}
${found.length > pageLength && html`<p><a class="button second" href="/admin/channels?before=${shown.at(-1)?.id}">Older</a></p>`}`
}

function nextText({ claimsOf, now }: AdminContext, network: Channel['network']): string {
  const { nextAt, late } = claimsOf(network) ?? {}
  if (late !== undefined) return `late: ${scrub(late.reason)}`
  if (nextAt === undefined) return '-'
  return nextAt <= now() ? 'now' : `in ${duration(nextAt - now())}`
}

type Shown = { names: Names; at: number }

/** What the list and the page of a payment show of a channel. */
function columnsOf({ names, at }: Shown): readonly Column<Channel>[] {
  const amount = (title: string, of: (channel: Channel) => bigint): Column<Channel> => [
    title,
    (each) => names.amount(of(each), { network: each.network, asset: each.config.token }),
    'number',
  ]
  return [
    ['State', (channel) => stateOf(channel, at)],
    amount('Balance', ({ balanceAtomic }) => balanceAtomic),
    amount('Charged', ({ chargedAtomic }) => chargedAtomic),
    amount('Claimed', ({ claimedAtomic }) => claimedAtomic),
    amount('Unclaimed', unclaimedOf),
  ]
}

function list(title: string, channels: readonly Channel[], shown: Shown): Html {
  const link = (text: string) =>
    html`<a class="quiet" href="/admin/payments?q=${text}">${short(text)}</a>`
  return table(
    { list: title },
    channels,
    [
      ['Last used', ({ usedAt }) => time(usedAt)],
      ...columnsOf(shown),
      ['Network', ({ network }) => shown.names.network(network)],
      ['Payer', ({ config }) => link(config.payer)],
      ['Channel', ({ id }) => link(id)],
    ],
    'No buyer has opened a channel yet.',
  )
}

/** The money of a channel that was charged and is not on the chain. */
export function unclaimedOf({ chargedAtomic, balanceAtomic, claimedAtomic }: Channel): bigint {
  const owed = chargedAtomic < balanceAtomic ? chargedAtomic : balanceAtomic
  return owed > claimedAtomic ? owed - claimedAtomic : 0n
}

/** When a withdrawal can be finished, unix ms. */
export function deadlineOf({ withdrawAt, config }: Channel): number | undefined {
  return withdrawAt === undefined ? undefined : withdrawAt + config.withdrawDelay * 1000
}

function stateOf(channel: Channel, now: number): Html {
  const deadline = deadlineOf(channel)
  if (deadline === undefined)
    return channel.balanceAtomic > channel.claimedAtomic
      ? badge('good', 'open')
      : badge('plain', 'empty')
  const left = deadline > now ? `for ${duration(deadline - now)}` : 'over'
  const tone = unclaimedOf(channel) > 0n ? 'bad' : 'fair'
  return html`${badge(tone, 'withdrawal')} until ${time(deadline)}, ${left}`
}

/** The channel of a payment, on the page of that. */
export function channelOf(channel: Channel, shown: Shown): Html {
  return html`<h2 id="channel">Channel</h2>
${facts([
  ['Channel', html`<code class="hash">${channel.id}</code>`],
  ...columnsOf(shown).map(([title, cell]) => [title, cell(channel)] as const),
  ['Last used', time(channel.usedAt)],
])}`
}
