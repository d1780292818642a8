import type { Merchant, NetworkConfig, Route, Service } from '../../config/Config'
import * as Amount from '../../protocol/Amount'
import * as Time from '../../protocol/Time'

/** The texts of documents and pages about what a wallet has at a route without a further payment. */

type Given = Pick<Route, 'again' | 'trial' | 'pass'>

/** A pass, and the route that it opens. */
export type Pass = { opens: Route; requests: number; periodMs: number }

export function isGiven({ again, trial, pass }: Given): boolean {
  return again !== undefined || trial !== undefined || pass !== undefined
}

/** The pass that a route sells; undefined for a route that sells answers. */
export function passAt({ routes }: Pick<Merchant, 'routes'>, { passOf }: Route): Pass | undefined {
  const opens = passOf === undefined ? undefined : routes.find(({ path }) => path === passOf)
  return opens?.pass && { opens, ...opens.pass }
}

/** What the price of a pass is for: `for 500 requests in 24 hours`; undefined for other routes. */
export function unitOf(merchant: Pick<Merchant, 'routes'>, route: Route): string | undefined {
  const pass = passAt(merchant, route)
  return pass && `for ${textOf(pass)}`
}

function textOf({ requests, periodMs }: Pick<Pass, 'requests' | 'periodMs'>): string {
  return `${count(requests, 'request')} in ${Time.inWords(periodMs)}`
}

/** A line about each, as a person reads it: what is free first. */
export function linesOf(
  route: Given,
  networks: readonly NetworkConfig[],
): readonly (readonly [kind: 'trial' | 'pass' | 'again', text: string])[] {
  const { again, trial, pass } = route
  const coins = (of: (network: NetworkConfig) => bigint) =>
    [
      ...new Set(networks.map((each) => `${Amount.toShort(of(each), 6)} ${each.asset.symbol}`)),
    ].join(' or ')
  const lines: (readonly ['trial' | 'pass' | 'again', string])[] = []
  if (trial !== undefined) {
    const needs = networks.map((network) => trialNeeds(trial, network))
    const least = coins((network) => trialNeeds(trial, network).balanceAtomic)
    const blocks = Math.max(0, ...needs.map((each) => each.blocks))
    const wallet = needs.every(({ balanceAtomic }) => balanceAtomic === 0n)
      ? 'that signs in'
      : `with ${least}${blocks > 0 ? `, held for ${count(blocks, 'block')}` : ''}`
    const text = `${count(trial.requests, 'free request')} for a wallet ${wallet}`
    lines.push(['trial', `${text} (${trial.totalPerDay} a day for all wallets)`])
  }
  if (pass !== undefined)
    lines.push(['pass', `${coins(() => pass.priceAtomic)} for ${textOf(pass)}`])
  if (again !== undefined) {
    const times = again.max === 1 ? 'once' : `up to ${again.max} times`
    lines.push(['again', `the same answer for ${Time.inWords(again.forMs)}, ${times}`])
  }
  return lines
}

/** What MCP says of a route, because nothing in its messages can sign in; '' for nothing. */
export function overHttp(
  { merchant, route }: { merchant: Pick<Merchant, 'routes'>; route: Route },
  networks: readonly NetworkConfig[],
): string {
  if (passAt(merchant, route) !== undefined)
    return 'Its requests are made over HTTP by the wallet that pays, which signs in (header SIGN-IN-WITH-X).'
  const lines = linesOf(route, networks).map(([kind, text]) => `${kind}: ${text}`)
  if (lines.length === 0) return ''
  return `Over HTTP, with the header SIGN-IN-WITH-X, a wallet may have it without a payment. ${lines.join('; ')}.`
}

/** The least balance of a wallet for its first use of a trial, and its age. */
export function trialNeeds(
  trial: NonNullable<Route['trial']>,
  { sponsor }: Pick<NetworkConfig, 'sponsor'>,
): { balanceAtomic: bigint; blocks: number } {
  return {
    balanceAtomic: trial.minBalanceAtomic ?? sponsor?.minBalanceAtomic ?? 100_000n,
    blocks: trial.minBalanceAgeBlocks ?? sponsor?.minBalanceAgeBlocks ?? 50,
  }
}

/** What documents have of a route besides its price: `entitlements`, or what its `pass` opens. */
export function toJson(
  { baseUrl }: Pick<Service, 'baseUrl'>,
  { merchant, networks }: { merchant: Merchant; networks: readonly NetworkConfig[] },
  route: Route,
): { entitlements?: object; pass?: object } {
  const { again, trial, pass, path } = route
  const at = `${baseUrl}/m/${merchant.slug}`
  const sold = passAt(merchant, route)
  if (sold !== undefined) return { pass: { opens: at + sold.opens.path, ...termsOf(sold) } }
  if (!isGiven(route)) return {}
  const price = { mode: 'fixed', currency: 'USD' }
  const entitlements = {
    signIn: 'SIGN-IN-WITH-X',
    ...(again && { again: termsOf({ periodMs: again.forMs, requests: again.max }) }),
    ...(trial && {
      trial: {
        requests: trial.requests,
        per: trial.per,
        requestsPerDay: trial.totalPerDay,
        minBalances: networks.map((network) => {
          const { balanceAtomic, blocks } = trialNeeds(trial, network)
          const { id, asset } = network
          return { network: id, currency: asset.address, amount: String(balanceAtomic), blocks }
        }),
      },
    }),
    ...(pass && {
      pass: {
        url: `${at}${path}/pass`,
        price: { ...price, amount: Amount.toDecimal(pass.priceAtomic, 6) },
        ...termsOf(pass),
      },
    }),
  }
  return { entitlements }
}

function termsOf({ periodMs, requests }: Pick<Pass, 'periodMs' | 'requests'>) {
  return { period: Time.toIso(periodMs), requests }
}

function count(times: number, noun: string): string {
  return `${times} ${noun}${times === 1 ? '' : 's'}`
}
