import type { ChannelTotals } from '../../db/Channel'
import {
  type AssetRow,
  noFigures,
  type RequestCounts,
  type SalesClass,
  type SalesFigures,
  type SalesOfSpan,
  type SalesRow,
} from '../../db/sales'
import * as Amount from '../protocol/Amount'
import type * as Network from '../protocol/Network'
import * as Group from './Group'

/** How the figures are grouped. */
export type By = (typeof groupings)[number]

export const groupings = ['merchant', 'route', 'payer', 'network', 'day'] as const

/** An asset as it is shown. An unknown one has no decimals, so that it has no value in USD. */
export type Asset = Omit<AssetRow, 'decimals' | 'coinUsd'> & {
  decimals: number | undefined
  coinUsd: string | undefined
}

/** Millionths of a USD; undefined when the price or the decimals are not known. */
type Usd = {
  /** At 1 stablecoin = 1 USD. */
  paid: bigint | undefined
  /** What a sale earned before gas: delivered, without what was swapped for stock. Else 0. */
  revenue: bigint | undefined
  /** Swapped for stock: the principal, which the buyer has back as shares. */
  swapped: bigint | undefined
  gas: bigint | undefined
  /** Revenue less gas. */
  margin: bigint | undefined
}

/** Figures of one group, network and asset. */
export type Line = Group.Group & {
  class: SalesClass
  asset: Asset
  figures: SalesFigures
  usd: Usd
}

type Sum = Omit<Line, 'usd'>

/** Open channels of a network now, whatever the period. `usd`: of what is unclaimed. */
type ChannelLine = Omit<ChannelTotals, 'network'> & { asset: Asset; usd: bigint | undefined }

type GasLine = { asset: Asset; kind: string; gasWei: bigint; usd: bigint | undefined }

/** `failed`: requests with a credential that got a problem. */
type RequestLine = Group.Group & {
  asked: number
  paid: number
  failed: number
  /** Answers by entitlements, by their kind. */
  free: Readonly<Record<string, number>>
}

export type Report = {
  by: By
  /** Unix ms. */
  from: number
  to: number
  /** Sales, then own payments, then settlements of the facilitator. */
  lines: readonly Line[]
  /** Sales of each network and asset. */
  totals: readonly Line[]
  /** Gas that is of no payment and no order. */
  otherGas: readonly GasLine[]
  /** What is sold by channels and not on chain yet. */
  channels: readonly ChannelLine[]
  /** Requests by route, merchant or day; one line for all requests by another grouping. */
  requests: readonly RequestLine[]
  /** Included transactions whose cost an earlier version did not store. */
  unknownGas: number
  /** Days after `to` are not in it, because it has too many lines. */
  isCut: boolean
}

const classes: readonly SalesClass[] = ['sale', 'own', 'facilitator']

/** Collects figures in groups. `assets`: the newest description first. */
export function create(by: By, assets: readonly AssetRow[]) {
  const lines = new Map<string, Sum>()
  const totals = new Map<string, Sum>()
  const otherGas = new Map<string, Omit<GasLine, 'usd'>>()
  const requests = new Map<string, RequestLine>()
  let channels: readonly ChannelLine[] = []
  let unknownGas = 0

  const addTo = (all: Map<string, Sum>, group: Group.Group, row: SalesRow) => {
    const { network, asset } = row
    const key = [row.class, ...Object.values(group), network, asset.toLowerCase()].join(' ')
    const line = all.get(key) ?? {
      ...group,
      class: row.class,
      asset: assetOf(assets, network, asset),
      figures: { ...noFigures },
    }
    all.set(key, { ...line, figures: plus(line.figures, row) })
  }
  return {
    /** Adds the figures of a span, which is within a UTC day such as `2026-11-20`. */
    add(day: string, span: SalesOfSpan): void {
      for (const row of span.rows) {
        unknownGas += row.unknownGas
        addTo(lines, Group.of(by, { ...row, day }), row)
        if (row.class === 'sale') addTo(totals, {}, row)
      }
      for (const { network, kind, gasWei, unknownGas: unknown } of span.otherGas) {
        unknownGas += unknown
        const key = `${network} ${kind}`
        const before = otherGas.get(key)?.gasWei ?? 0n
        const asset = assetOf(assets, network, undefined)
        otherGas.set(key, { asset, kind, gasWei: before + gasWei })
      }
    },
    addChannels(totals: readonly ChannelTotals[]): void {
      channels = totals.map(({ network, ...total }) => {
        const newest = assets.find((each) => each.network === network)
        const asset = assetOf(assets, network, newest?.address)
        return { ...total, asset, usd: usdOf(total.unclaimedAtomic, asset) }
      })
    },
    /** Adds the counts of a UTC day. */
    addRequests(day: string, counts: readonly RequestCounts[]): void {
      for (const count of counts) {
        const group = Group.of(by, { ...count, day })
        const key = Object.values(group).join(' ')
        const line = requests.get(key) ?? {
          ...{ ...group, asked: 0, paid: 0, failed: 0 },
          free: {},
        }
        requests.set(key, line)
        const { step, detail, times } = count
        if (step === 'free')
          line.free = { ...line.free, [detail]: (line.free[detail] ?? 0) + times }
        else if (step !== 'tried') line[step === 'refused' ? 'failed' : step] += times
      }
    },
    lines: () => lines.size,
    report: (period: { from: number; to: number }, isCut = false): Report => ({
      by,
      ...period,
      isCut,
      lines: [...lines.values()].map(valued).sort(inOrder),
      totals: [...totals.values()].map(valued).sort(inOrder),
      otherGas: [...otherGas.values()].map((line) => {
        return { ...line, usd: usdOfGas(line.gasWei, line.asset) }
      }),
      channels,
      requests: [...requests.values()].sort(
        (a, b) =>
          compare(a.day, b.day) || b.asked - a.asked || compare(Group.nameOf(a), Group.nameOf(b)),
      ),
      unknownGas,
    }),
  }
}

function assetOf(
  assets: readonly AssetRow[],
  network: Network.Id,
  address: AssetRow['address'] | undefined,
): Asset {
  const newest = assets.find((each) => each.network === network)
  const found = assets.find(
    (each) => each.network === network && each.address.toLowerCase() === address?.toLowerCase(),
  )
  return {
    network,
    address: address ?? newest?.address ?? '0x',
    networkName: newest?.networkName ?? network,
    symbol: found?.symbol ?? address ?? '',
    decimals: found?.decimals,
    coinUsd: newest?.coinUsd,
  }
}

type AmountName = Extract<keyof SalesFigures, `${string}${'Atomic' | 'Wei'}`>

function isAmount(name: keyof SalesFigures): name is AmountName {
  return typeof noFigures[name] === 'bigint'
}

export function plus(a: SalesFigures, b: SalesFigures): SalesFigures {
  const sum = { ...noFigures }
  for (const name of Object.keys(noFigures) as (keyof SalesFigures)[]) {
    // Both do the same: a sum of names has one type only after the check.
    if (isAmount(name)) sum[name] = a[name] + b[name]
    else sum[name] = a[name] + b[name]
  }
  return sum
}

function valued(line: Sum): Line {
  const { asset, figures } = line
  const gas = usdOfGas(figures.gasWei, asset)
  const paid = usdOf(figures.paidAtomic, asset)
  // Only a sale brings money in.
  const sold = line.class === 'sale' ? figures.deliveredAtomic - figures.swappedAtomic : 0n
  const revenue = usdOf(sold, asset)
  const swapped = usdOf(figures.swappedAtomic, asset)
  const margin = revenue === undefined || gas === undefined ? undefined : revenue - gas
  return { ...line, usd: { paid, revenue, swapped, gas, margin } }
}

/** The sum of millionths of a USD; undefined when one of them is not known. */
export function sumOfUsd(all: readonly (bigint | undefined)[]): bigint | undefined {
  return all.reduce(
    (sum, usd) => (sum === undefined || usd === undefined ? undefined : sum + usd),
    0n,
  )
}

/** Millionths of a USD, at 1 stablecoin = 1 USD. */
export function usdOf(atomic: bigint, { decimals }: Asset): bigint | undefined {
  return decimals === undefined ? undefined : (atomic * 1_000_000n) / 10n ** BigInt(decimals)
}

const weiInCoin = 10n ** 18n

/** Millionths of a USD, rounded, at the price of the coin in the newest configuration. */
function usdOfGas(wei: bigint, { coinUsd }: Asset): bigint | undefined {
  const match = coinUsd === undefined ? null : /^(\d+)(?:\.(\d{1,6}))?$/.exec(coinUsd)
  if (match === null) return undefined
  const micro = BigInt(`${match[1]}${(match[2] ?? '').padEnd(6, '0')}`)
  return (wei * micro + weiInCoin / 2n) / weiInCoin
}

/** Sales first, days in their order, then the highest amount. */
function inOrder(a: Line, b: Line): number {
  const [most, least] = [a.usd.paid ?? -1n, b.usd.paid ?? -1n]
  return (
    classes.indexOf(a.class) - classes.indexOf(b.class) ||
    compare(a.day, b.day) ||
    (most === least ? 0 : most > least ? -1 : 1) ||
    compare(Group.nameOf(a), Group.nameOf(b)) ||
    compare(a.asset.network, b.asset.network)
  )
}

function compare(a = '', b = ''): number {
  return a < b ? -1 : a > b ? 1 : 0
}

/** Millionths of a USD as a decimal, such as `-0.004200`. */
export function usdText(micro: bigint): string {
  return micro < 0n ? `-${Amount.toDecimal(-micro, 6)}` : Amount.toDecimal(micro, 6)
}
