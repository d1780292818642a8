/**
 * Where an example has another shape than an answer: a member that the answer lacks, or a value of
 * another type. The answer may have more members, and null where a value is unknown. The first item
 * of a list stands for all of its items.
 */
export function misfitsOf(example: unknown, answer: unknown, at = '$'): string[] {
  if (Array.isArray(example)) {
    if (!Array.isArray(answer)) return [`${at} is no list`]
    return example.flatMap((item, index) => misfitsOf(item, answer[index], `${at}[${index}]`))
  }
  if (typeof example === 'object' && example !== null) {
    if (typeof answer !== 'object' || answer === null || Array.isArray(answer))
      return [`${at} is no object`]
    return Object.entries(example).flatMap(([name, value]) =>
      Object.hasOwn(answer, name)
        ? misfitsOf(value, (answer as Record<string, unknown>)[name], `${at}.${name}`)
        : [`${at} has no ${name}`],
    )
  }
  if (answer === null || typeof answer === typeof example) return []
  return [`${at} is ${typeof answer}`]
}
