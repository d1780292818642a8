import type { Times } from '../../db/postgres/gateways'
import { account } from '../../src/demo/accounts'
import * as Crypto from '../../src/protocol/Crypto'
import * as Transfer from '../../src/protocol/Transfer'
import { createSettlement, type Settlement } from '../../src/settlement/settlement'
import { startGateway, type TestGateway } from './gateway-pair'
import { gatewayDatabase } from './postgres'
import {
  networkOf,
  purposeOf,
  relayerKey,
  signTransfer,
  silent,
  startNetwork,
  until,
} from './settlement'
import { freshWallet, setAllowances, setTokens } from './sponsor'

/** Gateways over one database and one real chain, which sell by the scheme `upto`. */

const relayerKeys = [relayerKey, Crypto.bytes(account(6).privateKey)]

/** Addresses of the relayers. */
export const relayers = relayerKeys.map(Crypto.addressOf)

export type UptoCluster = Awaited<ReturnType<typeof uptoCluster>>

export type Seller = TestGateway & {
  settlement: Settlement
  events: { event: string; fields: Readonly<Record<string, unknown>> | undefined }[]
}

export type Payer = ReturnType<typeof freshWallet>

/** Only a test ends a gateway: on a busy machine none may count as dead by itself. */
const calm: Partial<Times> = { deadMs: 60_000, steadyMs: 60_000, gapMs: 30_000, freshMs: 45_000 }

export async function uptoCluster({ dies = false } = {}) {
  const net = await startNetwork('usdg')
  const network = networkOf(net.tap.url, 'usdg')
  const url = await gatewayDatabase()
  const all: Seller[] = []
  const own = {
    net,
    network,
    url,
    async start(): Promise<Seller> {
      const seller = await startSeller(url, network, dies ? {} : calm)
      all.push(seller)
      return seller
    },
    /** Two gateways that each have one of the relayers. */
    async pair(): Promise<readonly [Seller, Seller]> {
      const one = await own.start()
      const other = await own.start()
      await until(() => [one, other].every((each) => namedBy(each, network.id) !== undefined))
      return [one, other]
    },
    /** Ends the connections before the settlement, so that it can write no more. */
    async kill(seller: Seller) {
      await seller.die()
      await seller.settlement.stop(0)
    },
    /** A payer that was never used, whose tokens Permit2 may move. */
    async payer(balanceAtomic: bigint): Promise<Payer> {
      const made = freshWallet()
      const asset = network.asset.address
      await setTokens(net.chain, asset, [made.address], balanceAtomic)
      await setAllowances(net.chain, asset, [made.address], 10n ** 12n)
      return made
    },
    /** A signed ceiling that names the relayer of a gateway, or this one. */
    async sign(
      payer: Payer,
      seller: Seller,
      ceilingAtomic: bigint,
      facilitator = namedBy(seller, network.id),
    ): Promise<Transfer.Transfer> {
      if (facilitator === undefined) throw new Error('the gateway has no relayer')
      const { signature: _, ...bare } = signTransfer(network, {
        method: 'permit2',
        payer: payer.address,
        amountAtomic: ceilingAtomic,
      })
      const transfer = { ...bare, upto: { ceilingAtomic, facilitator } }
      const hash = Crypto.hex(Transfer.digest(transfer, network.asset))
      return { ...transfer, signature: await payer.sign({ hash }) }
    },
    /** A signed payment of a fixed amount. */
    async signExact(payer: Payer, amountAtomic: bigint): Promise<Transfer.Transfer> {
      const { signature: _, ...bare } = signTransfer(network, {
        ...{ method: 'permit2', payer: payer.address, amountAtomic },
      })
      const hash = Crypto.hex(Transfer.digest(bare, network.asset))
      return { ...bare, signature: await payer.sign({ hash }) }
    },
    async [Symbol.asyncDispose]() {
      for (const each of all) {
        await each.settlement.stop(0)
        await each.leave()
      }
      await net.stop()
    },
  }
  return own
}

async function startSeller(
  url: string,
  network: ReturnType<typeof networkOf>,
  times: Partial<Times>,
): Promise<Seller> {
  const gateway = await startGateway(url, { now: Date.now, times })
  const events: Seller['events'] = []
  const settlement = await createSettlement({
    ledger: gateway.ledger,
    meter: silent,
    networks: [network],
    relayerKeys,
    now: Date.now,
    log: (event, fields) => void events.push({ event, fields }),
    checkMs: 200,
    blockTimeMs: 100,
    rpcTimeoutMs: 60_000,
    monotonic: () => performance.now(),
    clockSkewMaxMs: Number.POSITIVE_INFINITY,
  })
  await settlement.recover()
  return { ...gateway, settlement, events }
}

/** A relayer that a gateway names in its offers of `upto`. */
export function namedBy({ settlement }: Seller, network: Transfer.Transfer['network']) {
  return settlement.authorizations.facilitators(network, 1n)[0]
}

export function authorizeAt(
  { settlement }: Seller,
  transfer: Transfer.Transfer,
  key?: string,
): ReturnType<Settlement['authorizations']['authorize']> {
  return settlement.authorizations.authorize(transfer, purposeOf({ idempotencyKey: key }), {
    id: settlement.createId(),
    receivedAt: Date.now(),
    validUntil: Date.now() + 30_000,
  })
}
