import { expect, test } from 'bun:test'
import { createChannels, takeTurn } from '../../../src/settlement/channels/state'

const id = '0x01'
const waitMs = 2_000

test('the turn of a channel goes to its requests in their order, and an end counts once', async () => {
  const channels = createChannels(undefined)
  const order: string[] = []
  const end = await takeTurn(channels, id, 0)
  const take = async (name: string) => {
    const release = await takeTurn(channels, id, waitMs)
    order.push(name)
    return release
  }
  const second = take('second')
  const third = take('third')
  end?.()
  end?.()
  const endSecond = await second
  expect(order).toEqual(['second'])
  endSecond?.()
  const endThird = await third
  endThird?.()
  expect([order, channels.turns.size]).toEqual([['second', 'third'], 0])
})

test('a request that waited in vain leaves its place to the next one', async () => {
  const channels = createChannels(undefined)
  const end = await takeTurn(channels, id, 0)
  expect(await takeTurn(channels, id, 1)).toBeUndefined()
  const next = takeTurn(channels, id, waitMs)
  end?.()
  expect(await next).toBeFunction()
})

test('attack: no more than sixteen requests wait for the turn of a channel', async () => {
  const channels = createChannels(undefined)
  const end = await takeTurn(channels, id, 0)
  const waiting = Array.from({ length: 16 }, () => takeTurn(channels, id, waitMs))
  expect(await takeTurn(channels, id, waitMs)).toBeUndefined()
  end?.()
  for (const each of waiting) (await each)?.()
  expect(channels.turns.size).toBe(0)
})
