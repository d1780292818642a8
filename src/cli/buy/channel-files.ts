import * as fs from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import type { Hex } from 'viem'
import { lockFile } from '../../../db/lock'
import { replaceFile } from '../../config/durable'
import { codeOf, type Env } from '../../config/env'
import { CommandError } from '../Command'
import * as Voucher from './Voucher'

/** The channels of the wallets of a user: a file for each, which one process at a time uses. */

export type ChannelFiles = ReturnType<typeof openChannelFiles>

/** A channel in use; `state` is as it is on the disk, undefined where nothing is known. */
export type Held = {
  state: Voucher.State | undefined
  /** On the disk when it returns. */
  save(state: Voucher.State): void
  forget(): void
}

/** A channel in use whose state is known. */
export type Open = Held & { state: Voucher.State }

/**
 * The file of `turnpike mcp`, beside which the channels are. One for all gateways by default, so that
 * they share the limit of the day.
 */
export function stateFile({ state, env }: { state?: string | undefined; env: Env }): string {
  if (state !== undefined) return resolve(state)
  const local = process.platform === 'win32' ? env.LOCALAPPDATA : env.XDG_STATE_HOME
  const home = env.HOME || homedir()
  return join(local || join(home, '.local', 'state'), 'turnpike', 'mcp.sqlite')
}

const idPattern = /^(0x[0-9a-f]{64})\.json$/

/** `file` is that of `stateFile`. Methods throw a CommandError when a file cannot be used. */
export function openChannelFiles(file: string) {
  const directory = join(dirname(file), 'channels')
  const pathOf = (id: Hex) => join(directory, `${id}.json`)
  const guarded = <T>(run: () => T): T => {
    try {
      return run()
    } catch (error) {
      if (error instanceof CommandError) throw error
      throw new CommandError(`The channels in ${directory} cannot be used (${codeOf(error)}).`)
    }
  }
  /** What is known of a channel, perhaps while another process uses it. */
  const read = (id: Hex) =>
    guarded(() => {
      const isThere = fs.existsSync(pathOf(id))
      return isThere ? Voucher.decode(fs.readFileSync(pathOf(id), 'utf8'), id) : undefined
    })
  // A crash of the machine must not forget a voucher that was sent.
  const save = (id: Hex, state: Voucher.State) =>
    guarded(() => replaceFile(pathOf(id), Voucher.encode(state)))
  return {
    read,
    /**
     * Uses a channel for this process alone; undefined while another one, or another call, has it, which reads
     * `current`: the request that this one is at.
     */
    async use<T>(
      id: Hex,
      run: (held: Held) => Promise<T>,
      current?: string,
    ): Promise<T | undefined> {
      const release = guarded(() => {
        fs.mkdirSync(directory, { recursive: true, mode: 0o700 })
        return lockFile(join(directory, `${id}.lock`))
      })
      if (release === undefined) return undefined
      const forget = () => guarded(() => fs.rmSync(pathOf(id), { force: true }))
      const keep = (state: Voucher.State) => save(id, { ...state, current })
      try {
        const state = read(id)
        if (state && state.current !== current) keep(state)
        return await run({ state, save: keep, forget })
      } finally {
        release()
      }
    },
    list: () =>
      guarded(() => {
        const names = fs.existsSync(directory) ? fs.readdirSync(directory).toSorted() : []
        return names.flatMap((name) => {
          const id = idPattern.exec(name)?.[1] as Hex | undefined
          return (id && read(id)) ?? []
        })
      }),
  }
}
