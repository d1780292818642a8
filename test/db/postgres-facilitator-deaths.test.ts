import { describe, expect, test } from 'bun:test'
import type { Address } from 'viem'
import { balanceOf } from '../../src/demo/chains'
import { type Answer, type Body, charging, makeBody } from '../harness/facilitation'
import { type Facilitator, facilitatorAt } from '../harness/facilitators'
import { hasPostgres } from '../harness/postgres'
import { payee, until } from '../harness/settlement'
import { type Payer, relayers, type Seller, uptoCluster } from '../harness/upto-cluster'

/** Resource servers repeat their calls of `/settle` at any gateway while gateways die. */

const calls = 80
const deaths = 4
/** Pause of a caller before it repeats a call, ms. */
const pauseMs = 10
const used = 'permit2_invalid_nonce'

type Living = { seller: Seller; facilitator: Facilitator }
type Call = { charged: Body; key: string; amount: bigint; answer: Answer | undefined }

/** Another answer is not a result: the caller repeats the call. */
function isFinal({ status, json }: Answer): boolean {
  return status === 200 && json.status !== 'pending'
}

describe.skipIf(!hasPostgres)('a facilitator whose gateways die', () => {
  test('attack: repeated calls move each charge once, and get its success, or nothing moves', async () => {
    await using own = await uptoCluster({ dies: true })
    const living: Living[] = []
    const add = async () => {
      const seller = await own.start()
      living.push({ seller, facilitator: facilitatorAt(own, seller, { apiKey: 'server' }) })
    }
    await add()
    await add()
    const before = await balanceOf(own.net.chain, own.network.asset.address, payee)
    const payers = await Promise.all([1, 2, 3].map(() => own.payer(1_000_000n)))
    const all: Call[] = await Promise.all(
      Array.from({ length: calls }, async (_, index) => {
        const amount = 100n + BigInt(index)
        const body = await makeBody(own.network, {
          scheme: 'upto',
          from: payers[index % payers.length] as Payer,
          facilitator: relayers[index % relayers.length] as Address,
          requirements: { maxTimeoutSeconds: 1 },
        })
        return { charged: charging(body, amount), key: `key-${index}`, amount, answer: undefined }
      }),
    )
    const ended = () => all.filter(({ answer }) => answer !== undefined).length
    const settle = async (call: Call, start: number) => {
      for (let turn = start; call.answer === undefined; turn++) {
        const answer = await living[turn % living.length]?.facilitator.settle(
          call.charged,
          call.key,
        )
        if (answer && isFinal(answer)) call.answer = answer
        // What a caller does that is told to try again; it also lets the gateways work.
        else await Bun.sleep(pauseMs)
      }
    }
    // Four resource servers, each of which has several calls.
    const serve = async (server: number) => {
      for (let index = server; index < calls; index += 4) {
        const call = all[index]
        if (call) await settle(call, index)
      }
    }
    const serving = [0, 1, 2, 3].map(serve)
    for (let death = 1; death <= deaths; death++) {
      await until(() => ended() >= (calls * death) / (deaths + 4))
      await add()
      const [dead] = living.splice(0, 1)
      if (dead) await own.kill(dead.seller)
    }
    await Promise.all(serving)
    const answers = all.map(({ answer }) => answer?.json ?? {})
    const refusals = answers.filter(({ success }) => success !== true)
    expect(refusals.filter(({ errorReason }) => errorReason !== used)).toEqual([])
    const told = all.filter(({ answer }) => answer?.json.success === true)
    expect(told.map(({ answer }) => answer?.json.amount)).toEqual(
      told.map(({ amount }) => String(amount)),
    )
    const sum = told.reduce((total, { amount }) => total + amount, 0n)
    const after = await balanceOf(own.net.chain, own.network.asset.address, payee)
    expect(after - before).toBe(sum)
    // A death can end a few charges only.
    expect(told.length).toBeGreaterThan(calls / 2)
  }, 120_000)
})
