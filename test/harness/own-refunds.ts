import { encodeFunctionData, type Hex, parseAbi } from 'viem'
import type { Purpose } from '../../db/Payment'
import type { NetworkConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { balanceOf, execute, mine } from '../../src/demo/chains'
import * as Crypto from '../../src/protocol/Crypto'
import { createRefunds, type Refunds, type RefundsOptions } from '../../src/refunds/refunds'
import { ownSettlement } from './own-settlement'
import { type RpcCall, signTransfer, silent, until } from './settlement'

/** The account of REFUND_KEY; it has no native coin. */
export const refunder = account(6)

const token = parseAbi([
  'function mint(address to, uint256 value)',
  'function setBlocked(address account, bool value)',
])

type Options = {
  manners?: 'usdg' | 'usdc'
  network?: Partial<NetworkConfig>
  /** Money of the account; 1 by default. */
  heldAtomic?: bigint
}

/** A settlement of one test alone, and the refunds over it. */
export async function ownRefunds({ manners = 'usdg', network: changes, heldAtomic }: Options = {}) {
  const own = await ownSettlement({
    ...{ manners, network: { reorgDepth: 3, ...changes } },
    settlement: { resendMs: 50 },
  })
  const { net, network } = own
  const events: { event: string; fields: unknown }[] = []
  const state = { offsetMs: 0, perDayAtomic: 100_000_000n, automatic: ['auto'] }
  const running: Refunds[] = []
  const call = (data: Hex) =>
    execute(net.chain, [{ from: account(9).address, to: network.asset.address, data }])
  const tools = {
    events,
    state,
    /** Another gateway over the same ledger, or the first one. */
    start(changes: Partial<RefundsOptions> = {}): Refunds {
      const refunds = createRefunds({
        refunds: own.fixture.ledger.refunds,
        settlement: own.fixture.settlement,
        key: Crypto.bytes(refunder.privateKey),
        networks: [network],
        merchants: () => state.automatic,
        perDayAtomic: () => state.perDayAtomic,
        meter: silent,
        now: () => Date.now() + state.offsetMs,
        log: (event, fields) => void events.push({ event, fields }),
        lookMs: 10,
        sweepMs: 10,
        ...changes,
      })
      running.push(refunds)
      refunds.start()
      return refunds
    },
    /** Ends all of them and the settlement, as a crash would, and starts the settlement again. */
    async restart() {
      await Promise.all(running.splice(0).map((each) => each.stop()))
      await own.reopen()
    },
    /** A confirmed payment that no later block can take away. */
    async pay(changes: Partial<Purpose> & { amountAtomic?: bigint; from?: number } = {}) {
      const { amountAtomic = 5_000n, from = 1, ...purpose } = changes
      const transfer = signTransfer(network, { amountAtomic, from })
      const outcome = await own.fixture.pay(transfer, purpose)
      if (outcome.kind !== 'confirmed') throw new Error(outcome.kind)
      await mine(net.chain, 4)
      return outcome.payment
    },
    request: (paymentId: string, more: { amountAtomic?: bigint } = {}) =>
      own.fixture.ledger.refunds.request({
        ...{ paymentId, account: refunder.address, reason: 'operator', note: undefined },
        ...{ amountAtomic: undefined, perDayAtomic: state.perDayAtomic, ...more },
        now: Date.now() + state.offsetMs,
      }),
    find: (id: string) => own.fixture.ledger.refunds.find(id),
    stateOf: async (id: string) => (await own.fixture.ledger.refunds.find(id))?.state,
    untilState: (id: string, wanted: string) =>
      until(async () => (await tools.stateOf(id)) === wanted),
    /** Jobs of refunds, by their ids. */
    jobs: () =>
      own.fixture.sql
        .query<{ id: string; state: string; hash: Hex }, []>(
          "SELECT id, state, transaction_hash AS hash FROM jobs WHERE id LIKE 'repay:%' ORDER BY id",
        )
        .all(),
    mint: (amountAtomic: bigint) =>
      call(
        encodeFunctionData({
          abi: token,
          functionName: 'mint',
          args: [refunder.address, amountAtomic],
        }),
      ),
    block: (index: number, isBlocked = true) =>
      call(
        encodeFunctionData({
          abi: token,
          functionName: 'setBlocked',
          args: [account(index).address, isBlocked],
        }),
      ),
    /** Balance of a demo account. */
    held: (index: number) => balanceOf(net.chain, network.asset.address, account(index).address),
  }
  await tools.mint(heldAtomic ?? 1_000_000n)
  const end = own[Symbol.asyncDispose]
  return Object.assign(own, tools, {
    async [Symbol.asyncDispose]() {
      await Promise.all(running.map((each) => each.stop()))
      await end()
    },
  })
}

export type OwnRefunds = Awaited<ReturnType<typeof ownRefunds>>

/** Whether a call sends the transfer of a refund, which has the address of its account. */
export function isRefund({ method, params }: RpcCall): boolean {
  return (
    method.startsWith('eth_sendRawTransaction') &&
    String(params[0]).includes(refunder.address.slice(2).toLowerCase())
  )
}
