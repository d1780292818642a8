import type { Channel } from '../../../db/Channel'
import type { Pending } from '../../../db/payment-reads'
import type { NetworkConfig } from '../../config/Config'
import { scrub } from '../../log'
import type { Details } from '../../settlement/state/availability'
import { type Html, html } from '../html'
import type { Tone } from '../parts'
import { qr } from '../qr'
import { deadlineOf, unclaimedOf, withdrawalsMax } from './channels'
import type { Sum } from './figures'
import { amount, coin, coinAndUsd, duration, percent } from './parts'
import type { AdminContext } from './sources'

type Priced = Pick<NetworkConfig, 'name' | 'ethPriceUsd'>

/** Something that an operator should look at. */
export type Attention = {
  tone: Tone
  /** The kind, in a word or two. */
  word: string
  what: string
  more?: Html | string | undefined
  image?: Html | undefined
  link?: readonly [href: string, text: string] | undefined
}

const bad = (word: string, what: string, more: Attention['more'], rest?: Partial<Attention>) =>
  ({ tone: 'bad', word, what, more, ...rest }) satisfies Attention
const fair = (word: string, what: string, more: Attention['more'], rest?: Partial<Attention>) =>
  ({ tone: 'fair', word, what, more, ...rest }) satisfies Attention

/** A budget needs attention when this part of it is spent. */
const budgetPart = 0.8

/** A payment that is in no block for longer than this needs attention, ms. */
const pendingMaxMs = 10 * 60_000

/** The paid and undelivered answers of the days that the overview shows. */
export type Missing = Pick<Sum, 'undelivered' | 'redeemable'>

/** Everything that needs attention, the most urgent first. */
export async function attentionOf(context: AdminContext, missing: Missing): Promise<Attention[]> {
  const { config, ...sources } = context
  const networks = sources.networks()
  const of = (id: string) =>
    config.networks.find((each) => each.id === id) ?? { name: id, ethPriceUsd: 0 }
  const [withdrawals, held, sponsors, pauses, pending] = [
    await sources.channels.withdrawals(withdrawalsMax),
    (await sources.heldOrders()) ?? [],
    await sources.spentBudgets(),
    await sources.ledger.pauses(),
    await sources.pending(),
  ]
  const sellsNothing =
    config.stock === undefined && config.merchants.every(({ routes }) => routes.length === 0)
  const all: (Attention | undefined)[] = [
    storageFault(sources.storageFault()),
    ...held.map(({ id, symbol, heldReason = '' }) =>
      bad('held order', `${symbol}: ${heldReason}`, undefined, {
        link: [`/admin/orders#${id}`, 'See the order'],
      }),
    ),
    ...config.networks.flatMap((network) => channelsOf(network, withdrawals, context)),
    ...undeliveredOf(missing),
    ...sources.refunds.stuck().map(({ network, account, reason, payments: count }) =>
      bad(
        'refunds',
        `${payments(count)} on ${of(network).name}: ${reason}`,
        html`From <code>${account}</code>`,
        {
          link: ['/admin/refunds', 'See the refunds'],
        },
      ),
    ),
    ...networks.flatMap((network) => pausedOf(network, of(network.network))),
    ...sources
      .openCircuits()
      .map((origin) =>
        bad(
          'open circuit',
          `${scrub(origin)} does not answer`,
          'Nothing that needs it is sold until it answers again.',
        ),
      ),
    ...sources
      .refusedRoutes()
      .map(({ merchant, reason }) =>
        bad(
          'key refused',
          `${merchant}: ${reason}`,
          'Nothing is sold there until a request of our own passes. Correct the key and load the file again.',
        ),
      ),
    pendingOf(pending, sources.now()),
    localBaseUrl(config.service.baseUrl, sources.otherHost()),
    ...pauses.map(({ kind, name }) => {
      const isNetwork = kind === 'network'
      const more = `You paused this ${kind}. What is paid is completed.`
      return fair('sales paused', isNetwork ? of(name).name : name, more, {
        link: [isNetwork ? '/admin/networks' : '/admin/merchants', 'Resume'],
      })
    }),
    sellsNothing
      ? fair(
          'nothing to sell',
          'The file has no merchant with a route',
          'Add a [[merchants]] block to the file, then reload it.',
          { link: toFile },
        )
      : undefined,
    ...config.merchants.map(({ slug, outOfService: name }) =>
      name === undefined
        ? undefined
        : fair('out of service', slug, html`Set <code>${name}</code> and restart.`),
    ),
    ...networks.flatMap((network) => budgetsOf(network, of(network.network))),
    ...sponsors.map(({ network, reason }) => fair('budget spent', of(network).name, reason)),
  ]
  return all.filter((each) => each !== undefined)
}

const toFile = ['/admin/configuration', 'See the file'] as const

/** Paid answers that did not reach their buyers: first those that can no longer be fetched. */
function undeliveredOf({ undelivered, redeemable }: Missing): (Attention | undefined)[] {
  const lost = undelivered - redeemable
  const word = 'paid, not delivered'
  const link = ['/admin/payments?state=undelivered', 'See why and what to do'] as const
  const lostText = `${payments(lost)} of the last 30 days can no longer be fetched`
  const openText = `${payments(redeemable)} without an answer: the buyer can still fetch it`
  const sendBack = 'Send the money back on the page of each payment, or by turnpike refund.'
  const repair = 'Repair the upstream before the time to fetch it is over.'
  return [
    lost > 0 ? bad(word, lostText, sendBack, { link }) : undefined,
    redeemable > 0 ? bad(word, openText, repair, { link }) : undefined,
  ]
}

/** Channels that are being withdrawn, and claims that are late. */
function channelsOf(
  { id, name, asset }: NetworkConfig,
  withdrawals: readonly Channel[],
  { claimsOf, now }: AdminContext,
): (Attention | undefined)[] {
  const link = { link: ['/admin/channels', 'See the channels'] as const }
  const own = withdrawals.filter(({ network }) => network === id)
  const count = own.length === 1 ? '1 channel' : `${own.length} channels`
  const unclaimed = own.reduce((sum, each) => sum + unclaimedOf(each), 0n)
  const what = `${count} on ${name}: ${amount(unclaimed, asset)} not claimed yet`
  const endsIn = duration(Math.min(...own.map((each) => deadlineOf(each) ?? 0)) - now())
  const claimed = `The first ends in ${endsIn}. The service claims that before. Keep gas on the relayers.`
  const late = claimsOf(id)?.late
  return [
    unclaimed > 0n ? bad('withdrawal', what, claimed, link) : undefined,
    unclaimed === 0n && own.length > 0
      ? fair('withdrawal', what, 'Nothing to do: the buyers take what is theirs.', link)
      : undefined,
    late &&
      bad(
        'claims late',
        `Vouchers on ${name} are not claimed for ${duration(now() - late.since)}`,
        `${scrub(late.reason)}. Above unclaimed_max no voucher is taken.`,
        link,
      ),
  ]
}

function payments(count: number): string {
  return `${count.toLocaleString('en')} ${count === 1 ? 'payment' : 'payments'}`
}

function pendingOf({ oldest }: Pending, now: number): Attention | undefined {
  const late = oldest.filter(({ createdAt }) => now - createdAt > pendingMaxMs)
  if (late.length === 0) return undefined
  const age = duration(now - Math.min(...late.map(({ createdAt }) => createdAt)))
  return fair(
    'pending',
    `${payments(late.length)} without a block for up to ${age}`,
    'Nothing is lost: the service looks for each of them until it is decided.',
    { link: ['/admin/networks#pending', 'See the pending payments'] },
  )
}

function localBaseUrl(baseUrl: string, host: string | undefined): Attention | undefined {
  if (host === undefined) return undefined
  return fair(
    'base_url',
    `Offers name ${baseUrl}, and a request came for another host`,
    html`A client wrote <code>${host}</code>, which may be invented. If the service is public, set <code>base_url</code> to its address and restart.`,
    { link: toFile },
  )
}

function storageFault(code: string | undefined): Attention | undefined {
  if (code === undefined) return undefined
  return bad(
    'storage',
    `The database cannot be written (${code})`,
    'Nothing is sold until then. Free space on its disk, or make it writable.',
  )
}

function pausedOf({ network, ready, reason, remedy, relayers }: Details, of: Priced): Attention[] {
  const { name } = of
  const isOfNetwork = !ready && !relayers.some((relayer) => relayer.reason === reason)
  const why = scrub([reason ?? 'unknown', remedy].filter(Boolean).join('; '))
  const link = ['/admin/networks', 'See the networks'] as const
  return [
    ...(isOfNetwork ? [bad('network', `${name} cannot settle`, why, { link })] : []),
    ...relayers
      .filter((relayer) => !relayer.ready)
      .map(({ relayer, reason = '', remedy = '', fundWei }) => {
        const word = 'relayer paused'
        const to = html` <code>${relayer}</code>`
        if (fundWei === undefined)
          return bad(word, `${name}: ${scrub(reason)}`, html`${scrub(remedy)}${to}`)
        return bad(word, `Send about ${coinAndUsd(fundWei, of)} on ${name}`, html`To${to}`, {
          image: fundCode(network, relayer, fundWei),
        })
      }),
  ]
}

/** A wallet that reads it fills in chain, address and amount: https://eips.ethereum.org/EIPS/eip-681 */
function fundCode(network: string, relayer: string, wei: bigint): Html {
  const chainId = network.slice('eip155:'.length)
  const uri = `ethereum:${relayer}@${chainId}?value=${wei}`
  return qr(uri, `QR code: send ${coin(wei)} on chain ${chainId} to ${relayer}`)
}

function budgetsOf({ gas }: Details, of: Priced): Attention[] {
  return gas.flatMap(({ product, spentWei, budgetWei }) => {
    const part = budgetWei === 0n ? 0 : Number((spentWei * 1000n) / budgetWei) / 1000
    if (part < budgetPart) return []
    const what = `${percent(part, 1)} of today's gas of the ${product} on ${of.name}`
    const more = `${coinAndUsd(spentWei, of)} of ${coinAndUsd(budgetWei, of)}; it begins again at 0:00 UTC.`
    return part >= 1 ? bad('budget spent', what, more) : fair('budget', what, more)
  })
}
