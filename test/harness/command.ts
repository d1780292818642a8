import { type Context, failed } from '../../src/cli/Command'

/** The exit code of a command with these options, as the program runs it. */
export async function exitCode<Options extends Context>(
  run: (options: Options) => number | Promise<number>,
  given: Partial<Options>,
): Promise<number> {
  const context: Context = {
    ...{ verb: '', operand: '', file: 'merchants.toml', dataDir: 'data', env: {} },
    now: Date.now,
    out: () => undefined,
    err: () => undefined,
  }
  const options = { ...context, ...given } as Options
  try {
    return await run(options)
  } catch (error) {
    return failed(error, options.out)
  }
}
